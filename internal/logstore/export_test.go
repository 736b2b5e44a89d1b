package logstore

import "context"

// Written waits until what has been entered so far is written.
func (l *Log) Written(ctx context.Context) error { return l.written(ctx) }
