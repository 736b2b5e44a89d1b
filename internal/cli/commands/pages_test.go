package commands

import (
	"context"
	"errors"
	"net/url"
	"strconv"
	"testing"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// paged is a server with three pages of two images.
type paged struct{ sandpit.Client }

func (paged) Call(_ context.Context, _, path string, _, out any) error {
	at, err := url.Parse(path)
	if err != nil {
		return err
	}
	n, _ := strconv.Atoi(at.Query().Get("after"))
	list := out.(*v1.ImageList)
	for i := range 2 {
		list.Images = append(list.Images, v1.Image{Reference: strconv.Itoa(2*n + i)})
	}
	if n < 2 {
		list.Next = strconv.Itoa(n + 1)
	}
	return nil
}

func TestAllImagesAreListed(t *testing.T) {
	s := &session{Client: paged{}}
	all, err := s.images(t.Context())
	if err != nil || len(all) != 6 {
		t.Fatalf("got %d images, %v", len(all), err)
	}
	for i, image := range all {
		if image.Reference != strconv.Itoa(i) {
			t.Errorf("image %d is %s", i, image.Reference)
		}
	}
}

// stuck is a server that sends the same page for ever.
type stuck struct{ sandpit.Client }

func (stuck) Call(_ context.Context, _, _ string, _, out any) error {
	out.(*v1.ImageList).Next = "again"
	return nil
}

func (stuck) List(context.Context, sandpit.ListQuery) (sandpit.Page, error) {
	return sandpit.Page{Next: "again"}, nil
}

func TestListsEnd(t *testing.T) {
	s := &session{Client: stuck{}}
	if _, err := s.images(t.Context()); !errors.Is(err, errSamePage) {
		t.Errorf("listing images: %v", err)
	}
	if _, err := s.list(t.Context(), sandpit.ListQuery{}); !errors.Is(err, errSamePage) {
		t.Errorf("listing sandboxes: %v", err)
	}
}
