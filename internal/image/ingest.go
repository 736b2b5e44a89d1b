package image

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// parallelLayers is the number of layers that are transferred and unpacked concurrently:
// what Docker does.
const parallelLayers = 3

// ingest brings an image of a source into the store and leases its record.
// Nothing names it yet: the caller does, before it lets go of the lease.
func (s *Store) ingest(ctx context.Context, src Source, want platform, anyPlatform bool, report func(Progress)) (rec *record, fd int, err error) {
	s.sweep()
	var hold held // everything of the image, until its record holds it
	var used, layers []string
	defer func() {
		hold.release()
		// What is wrong must not lie around; what is merely late may.
		if err != nil && ctx.Err() == nil && !errors.Is(err, sandpit.ErrUnavailable) {
			s.collect("layers", layers)
			s.collect("blobs", used)
		}
	}()

	data, desc, doc, err := s.fetchManifest(ctx, src, want, &hold)
	if err != nil {
		return nil, -1, err
	}
	used = append(used, desc.hex(), doc.Config.hex())
	configData, err := s.fetchSmall(ctx, src, *doc.Config, &hold)
	if err != nil {
		return nil, -1, fmt.Errorf("image config: %w", err)
	}
	cfg, err := parseConfig(configData)
	if err != nil {
		return nil, -1, err
	}
	if len(cfg.diffIDs) != len(doc.Layers) {
		return nil, -1, fault.Invalidf("the image's manifest has %d layers, but its config has %d", len(doc.Layers), len(cfg.diffIDs))
	}
	if cfg.platform.os != "" && cfg.platform.arch != "" && !anyPlatform && want.rank(cfg.platform) == 0 {
		return nil, -1, sandpit.WithHint(fault.NotFoundf("the image does not exist for %s", want), "it exists for "+fault.Clip(cfg.platform.String()))
	}

	rec = &record{
		digest: desc.Digest, platform: cfg.platform.String(), created: cfg.created, config: cfg.config,
		size:  int64(len(data)) + doc.Config.Size,
		blobs: used,
	}
	// The same layer twice is shown once: the upper one hides all of the lower.
	last := make(map[string]int)
	for i, d := range cfg.diffIDs {
		last[d] = i
	}
	var jobs []layerJob
	for i, d := range cfg.diffIDs {
		hex := strings.TrimPrefix(d, DigestPrefix)
		rec.blobs = append(rec.blobs, doc.Layers[i].hex())
		if last[d] != i {
			continue
		}
		rec.size += doc.Layers[i].Size
		rec.layers = append(rec.layers, hex)
		jobs = append(jobs, layerJob{blob: doc.Layers[i], diffID: hex})
	}
	used, layers = rec.blobs, rec.layers
	if err := s.fetchLayers(ctx, src, jobs, report, &hold); err != nil {
		return nil, -1, err
	}
	if saved, ok := src.(*savedSource); ok {
		saved.mark(rec)
	}
	fd, err = s.commitRecord(rec)
	return rec, fd, err
}

// fetchManifest finds the manifest for a platform, through an index if there is one.
func (s *Store) fetchManifest(ctx context.Context, src Source, want platform, hold *held) ([]byte, Descriptor, document, error) {
	data, mediaType, err := src.Root(ctx)
	if err != nil {
		return nil, Descriptor{}, document{}, err
	}
	desc := Descriptor{MediaType: mediaType, Digest: DigestOf(data), Size: int64(len(data))}
	for depth := 0; ; depth++ {
		doc, err := parseDocument(data, desc.MediaType)
		if err != nil {
			return nil, desc, doc, err
		}
		if doc.Manifests == nil {
			for range 5 {
				var fd int
				if fd, err = s.putBlob(data); err == nil {
					hold.add(fd)
					return data, desc, doc, nil
				} else if err != errPruned {
					break
				}
			}
			return nil, desc, doc, err
		}
		if depth == 2 { // an index in an index is allowed; nobody goes deeper
			return nil, desc, doc, fault.Invalidf("reading index: indexes are nested too deeply")
		}
		if desc, err = doc.pick(want); err != nil {
			return nil, desc, doc, err
		}
		if data, err = s.fetchSmall(ctx, src, desc, hold); err != nil {
			return nil, desc, doc, fmt.Errorf("manifest: %w", err)
		}
	}
}

// A layerJob is a layer to be fetched and unpacked.
type layerJob struct {
	blob   Descriptor
	diffID string
}

// fetchLayers fetches and unpacks layers, a few at once, and holds them.
func (s *Store) fetchLayers(ctx context.Context, src Source, jobs []layerJob, report func(Progress), hold *held) error {
	var total int64
	for _, j := range jobs {
		total += j.blob.Size
	}
	if total > s.opt.Limits.ImageBytes {
		return fault.Invalidf("the image's layers are larger than %d bytes", s.opt.Limits.ImageBytes)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	rep := &reporter{f: report}
	next := make(chan int)
	var mu sync.Mutex // guards hold
	var wg sync.WaitGroup
	for range min(parallelLayers, len(jobs)) {
		wg.Go(func() {
			for i := range next {
				fds, err := s.fetchLayer(ctx, src, jobs[i], rep.layer(jobs[i], i, len(jobs)))
				mu.Lock()
				hold.fds = append(hold.fds, fds...)
				mu.Unlock()
				if err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range jobs {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

func (s *Store) fetchLayer(ctx context.Context, src Source, j layerJob, report func(Phase, int64)) (fds []int, err error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	fd, err := s.fetchBlob(ctx, src, j.blob, func(done int64) { report(PhaseDownload, done) })
	if err != nil {
		return nil, err
	}
	fds = append(fds, fd)
	fd, err = s.unpack(ctx, j.blob, j.diffID, func(done int64) { report(PhaseUnpack, done) })
	if err != nil {
		return fds, err
	}
	report(PhaseDone, j.blob.Size)
	return append(fds, fd), nil
}

// A reporter passes progress on, one call at a time and not too often.
type reporter struct {
	mu sync.Mutex // held while f runs
	f  func(Progress)
}

// reportEvery is the least time between two reports on one phase of a layer.
const reportEvery = 50 * time.Millisecond

func (r *reporter) layer(j layerJob, index, count int) func(Phase, int64) {
	if r.f == nil {
		return func(Phase, int64) {}
	}
	var last time.Time
	var phase Phase
	return func(p Phase, done int64) {
		now := time.Now()
		if p == phase && now.Sub(last) < reportEvery && done < j.blob.Size {
			return
		}
		phase, last = p, now
		r.mu.Lock()
		defer r.mu.Unlock()
		r.f(Progress{Layer: j.blob.Digest, Index: index, Count: count, Phase: p, Done: done, Total: j.blob.Size})
	}
}

// commitRecord writes the record of an image whose blobs and layers the caller
// holds, and leases it.
func (s *Store) commitRecord(rec *record) (fd int, err error) {
	if err := s.ensure("images"); err != nil {
		return -1, err
	}
	path := s.dir + "/images/" + rec.hex()
	data := rec.encode()
	for range 5 {
		// The record of a manifest always says the same. One that can't be read
		// is leased by nobody.
		if fd, err := openShared(path); err == nil {
			if old, err := readFD(fd); err == nil {
				if _, err := decodeRecord(old); err == nil {
					return fd, nil
				}
			}
			closeFD(fd)
		}
		tmp, err := s.tempFile()
		if err != nil {
			return -1, err
		}
		fd, err := func() (int, error) {
			defer tmp.discard()
			if _, err := tmp.Write(data); err != nil {
				return -1, s.diskError(fmt.Errorf("storing image: %w", err))
			}
			if !s.opt.NoSync {
				if err := tmp.Sync(); err != nil {
					return -1, s.diskError(fmt.Errorf("storing image: %w", err))
				}
			}
			if err := tmp.moveTo(path); err != nil {
				return -1, s.diskError(fmt.Errorf("storing image: %w", err))
			}
			if err := tmp.share(); err != nil {
				return -1, fmt.Errorf("storing image: %w", err)
			}
			if !isAt(int(tmp.Fd()), path) {
				return -1, errPruned
			}
			return dupCloexec(int(tmp.Fd()))
		}()
		if err != errPruned {
			return fd, err
		}
	}
	return -1, errPruned
}
