package server_test

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// Figures of matplotlib come as images with the data of their charts, data frames of pandas with
// their columns, and what IPython displays in its formats. The packages have 260 MB.
func TestFigures(t *testing.T) {
	testkit.NeedLong(t, "it installs matplotlib, pandas and IPython")
	python := testkit.NeedProgram(t, "python3")
	g := newGenerator(t, "figures", nil)
	packages, err := filepath.Glob(filepath.Join(g.venv(python), "../lib/python*/site-packages"))
	if err != nil || len(packages) != 1 {
		t.Fatal(packages, err)
	}
	source, err := filepath.EvalSymlinks(packages[0])
	if err != nil {
		t.Fatal(err)
	}
	s := newServed(t)
	s.start()
	c := s.unix()
	defer c.Close()
	sb, err := c.Create(t.Context(), sandpit.Spec{Mounts: []sandpit.Mount{{Source: source, Target: "/opt/packages", ReadOnly: true}}, Env: []string{"PYTHONPATH=/opt/packages", "MPLCONFIGDIR=/tmp"}})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Remove(t.Context())
	run := func(source string) (all []sandpit.CodeOutput) {
		t.Helper()
		res, err := sb.RunCode(t.Context(), sandpit.Code{Source: source, Output: func(o sandpit.CodeOutput) {
			o.PNG = bytes.Clone(o.PNG)
			all = append(all, o)
		}})
		if err != nil || !res.Success() || res.Truncated {
			t.Fatalf("%q: %+v, error %+v, %v", source, res, res.Error, err)
		}
		return all
	}
	run("import datetime\nimport matplotlib.pyplot as plt\nimport pandas as pd")
	flat := `"title":"","x_label":"","y_label":"","x_unit":null,"y_unit":null`
	for _, f := range []struct{ name, source, want string }{
		{
			"line", "plt.plot([1, 2, 3], [4, 5, float('nan')], label='a')\nplt.title('T'); plt.xlabel('time (s)'); plt.xticks([1, 2]); plt.yticks([4, 5]); plt.show()",
			`{"type":"line","elements":[{"label":"a","points":[[1,4],[2,5],[3,null]]}],"title":"T","x_label":"time (s)","y_label":"","x_unit":"s","y_unit":null,"x_ticks":[1,2],"x_tick_labels":["1","2"],"x_scale":"linear","y_ticks":[4,5],"y_tick_labels":["4","5"],"y_scale":"linear"}`,
		},
		{
			"dates", "plt.plot([datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 2)], [1, 2]); plt.xticks([]); plt.yticks([1])",
			`{"type":"line","elements":[{"label":"","points":[["2024-01-01T00:00:00+00:00",1],["2024-01-02T00:00:00+00:00",2]]}],` + flat + `,"x_ticks":[],"x_tick_labels":[],"x_scale":"datetime","y_ticks":[1],"y_tick_labels":["1"],"y_scale":"linear"}`,
		},
		{
			"scatter", "plt.scatter(['m', 'n'], [3, 4], label='d'); plt.yscale('log'); plt.yticks([1])",
			`{"type":"scatter","elements":[{"label":"d","points":[["m",3],["n",4]]}],` + flat + `,"x_ticks":["m","n"],"x_tick_labels":["m","n"],"x_scale":"categorical","y_ticks":[1],"y_tick_labels":["$\\mathdefault{10^{0}}$"],"y_scale":"log"}`,
		},
		{
			"bars in groups", "plt.bar([-.2, .8], [3, 4], width=.4, label='g'); plt.bar([.2, 1.2], [5, 6], width=.4, label='h'); plt.xticks([0, 1], ['p', 'q'])",
			`{"type":"bar","elements":[{"label":"p","group":"g","value":3},{"label":"q","group":"g","value":4},{"label":"p","group":"h","value":5},{"label":"q","group":"h","value":6}],` + flat + `}`,
		},
		{"flat bars", "plt.barh(['x', 'y'], [3, 4])", `{"type":"bar","elements":[{"label":"x","group":"","value":3},{"label":"y","group":"","value":4}],` + flat + `}`},
		{"pie", "plt.pie([1, 3], labels=['u', 'v'])", `{"type":"pie","elements":[{"label":"u","angle":90,"radius":1},{"label":"v","angle":270,"radius":1}],"title":""}`},
		{
			"boxes", "plt.boxplot([[1, 2, 3, 4, 100], [2, 3, 4]], tick_labels=['b', 'c'])",
			`{"type":"box_and_whisker","elements":[{"label":"b","min":1,"first_quartile":2,"median":3,"third_quartile":4,"max":4,"outliers":[100]},{"label":"c","min":2,"first_quartile":2.5,"median":3,"third_quartile":3.5,"max":4,"outliers":[]}],` + flat + `}`,
		},
		{
			"several", "f, (a, b) = plt.subplots(1, 2); a.pie([1]); b.barh(['x'], [1]); f.suptitle('S')",
			`{"type":"superchart","title":"S","elements":[{"type":"pie","elements":[{"label":"","angle":360,"radius":1}],"title":""},{"type":"bar","elements":[{"label":"x","group":"","value":1}],` + flat + `}]}`,
		},
		{"none that is known", "plt.imshow([[1, 2]])", `{"type":"unknown","elements":[],` + flat + `}`},
	} {
		all := run(f.source + "\nNone")
		if len(all) != 1 || !bytes.HasPrefix(all[0].PNG, []byte("\x89PNG\r\n")) || all[0].Main {
			t.Errorf("%s: %d outputs: %.300v", f.name, len(all), all)
			continue
		}
		var got, want any
		if err := json.Unmarshal(all[0].Chart, &got); err != nil {
			t.Errorf("%s: %q, %v", f.name, all[0].Chart, err)
		}
		if err := json.Unmarshal([]byte(f.want), &want); err != nil {
			t.Fatal(f.name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", f.name, diff)
		}
	}
	all := run("pd.DataFrame({'a': [1, 2], 'b': ['x', None]})")
	if len(all) != 1 || !all[0].Main || all[0].HTML == "" || all[0].Text == "" || string(all[0].Data) != `{"a":[1,2],"b":["x",null]}` {
		t.Errorf("of a data frame come %+v with %s", all, all[0].Data)
	}
	all = run("import IPython\nfrom IPython.display import display, clear_output, HTML, Image\nclear_output()\nh = display(HTML('<b>'), display_id=True)\nh.update(HTML('<i>'))\ndisplay(Image(data=b'\\x89PNG\\r\\n\\x1a\\n'))\nIPython.version_info[0] > 8")
	want := []sandpit.CodeOutput{
		{HTML: "<b>", Text: "<IPython.core.display.HTML object>"},
		{HTML: "<i>", Text: "<IPython.core.display.HTML object>"},
		{PNG: []byte("\x89PNG\r\n\x1a\n"), Text: "<IPython.core.display.Image object>"},
		{Main: true, Text: "True"},
	}
	if diff := cmp.Diff(want, all, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("IPython displays: %s", diff)
	}
}
