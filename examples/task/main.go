package main

import (
	"context"
	"fmt"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/local"
)

func main() {
	client, err := local.New(local.Options{Guest: local.Guest()})
	if err != nil {
		fmt.Println(err, sandpit.Hint(err))
		return
	}
	defer client.Close()
	res, err := sandpit.Do(context.Background(), client, sandpit.Task{
		Files:   map[string][]byte{"/tmp/in": []byte("sand\npit\n")},
		Command: sandpit.Command{Script: "sort /tmp/in >/tmp/out; echo sorted"},
		Outputs: []string{"/tmp/out"},
	})
	fmt.Printf("%s%s%v\n", res.Stdout, res.Files["/tmp/out"], err) // sorted, pit, sand, <nil>
}
