package fault

import "context"

type movesKey struct{}

// WithMoves returns a context with which Move calls f. A nil f is not called.
func WithMoves(ctx context.Context, f func()) context.Context {
	if f == nil {
		return ctx
	}
	return context.WithValue(ctx, movesKey{}, f)
}

// Move reports progress: an operation without progress for a long time hangs. It returns
// the error of ctx.
func Move(ctx context.Context) error {
	if f, ok := ctx.Value(movesKey{}).(func()); ok {
		f()
	}
	return ctx.Err()
}
