package cgroup

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// prepare makes the places fit for groups, once, and counts one more group.
// Every prepare that succeeds has its release.
func (l *Layout) prepare(id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ready {
		for i := range l.places {
			if err := l.preparePlace(&l.places[i], id); err != nil {
				return err
			}
		}
		l.ready = true
	}
	l.live++
	return nil
}

func (l *Layout) preparePlace(p *place, id string) error {
	switch p.prep {
	case prepEnable:
		return p.enable(p.dir)
	case prepLeaf:
		return l.enterLeaf(p)
	case prepScope:
		if p.dir == "" {
			dir, err := l.enterScope(p, id)
			if err != nil {
				return err
			}
			p.dir = dir
		}
		return l.enterLeaf(p)
	default: // prepShared is made when it is found missing
		return nil
	}
}

// release ends what prepare began. When the last group is gone, this process
// goes back from its leaf to where it was.
func (l *Layout) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.live--
	if l.live > 0 || l.leaf == "" {
		return
	}
	for i := range l.places {
		p := &l.places[i]
		// A group of another owner, or of one that is to come, would lose its
		// limits with the controllers.
		if p.prep == prepLeaf && !p.hasGroups() && l.leaveLeaf(p) == nil {
			l.ready = false
		}
	}
}

// hasGroups reports whether there is a group in p.dir.
func (p *place) hasGroups() bool {
	return slices.ContainsFunc(children(p.dir), func(name string) bool {
		return strings.HasPrefix(name, prefix) && !strings.HasPrefix(name, prefix+"self-")
	})
}

// enterLeaf moves this process to a child of p.dir and passes p's controllers
// on to the children: the kernel allows that only when p.dir has no process.
func (l *Layout) enterLeaf(p *place) error {
	leaf := p.dir + "/" + prefix + "self-" + strconv.Itoa(l.pid)
	if err := mkdir(leaf); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	err := writeFile(leaf+"/cgroup.procs", "0")
	if err == nil {
		l.leaf = leaf
		if err = p.enable(p.dir); err == nil {
			return nil
		}
		if undo := l.leaveLeaf(p); undo != nil {
			return errors.Join(err, undo)
		}
		return err
	}
	_ = rmdir(leaf)
	return err
}

// leaveLeaf undoes enterLeaf.
func (l *Layout) leaveLeaf(p *place) error {
	if err := p.control(p.dir, '-'); err != nil {
		return err
	}
	if err := writeFile(p.dir+"/cgroup.procs", "0"); err != nil {
		return err
	}
	err := rmdir(l.leaf)
	l.leaf = ""
	return err
}

// enable passes p's controllers on to the children of dir, where that is not
// so already: a needless write would cost a walk over the whole tree.
func (p *place) enable(dir string) error {
	var buf [256]byte
	on, err := readSmall(dir+"/cgroup.subtree_control", buf[:])
	if err != nil {
		return err
	}
	if p.ctrls&^parseCtrls(on, ' ') == 0 {
		return nil
	}
	return p.control(dir, '+')
}

func (p *place) control(dir string, sign byte) error {
	buf := make([]byte, 0, 32)
	for _, c := range [...]struct {
		set  ctrls
		name string
	}{{cpu, "cpu "}, {memory, "memory "}, {pids, "pids "}} {
		if p.ctrls&c.set != 0 {
			buf = append(append(buf, sign), c.name...)
		}
	}
	return writeFile(dir+"/cgroup.subtree_control", string(buf))
}

// makeShared makes p.dir, which groups of all sandpits of this machine share,
// whatever part of it is there already.
func (p *place) makeShared() error {
	if err := p.enable(filepath.Dir(p.dir)); err != nil {
		return fmt.Errorf("enabling controllers for child groups: %w", err)
	}
	if err := mkdir(p.dir); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return p.enable(p.dir)
}
