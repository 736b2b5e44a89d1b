package state

import (
	"context"
	"database/sql"
)

// tx is a transaction. Statements are compiled once: compiling takes half of the time of a
// short one.
type tx struct {
	conn  *sql.Conn
	stmts map[string]*sql.Stmt
}

// Contexts here are never done: an interrupted statement would leave the
// outcome open, and watching a context costs a goroutine.

func (t *tx) stmt(query string) (*sql.Stmt, error) {
	if stmt := t.stmts[query]; stmt != nil {
		return stmt, nil
	}
	stmt, err := t.conn.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, err
	}
	t.stmts[query] = stmt
	return stmt, nil
}

// exec runs a statement, whose text is one of few.
func (t *tx) exec(query string, args ...any) (sql.Result, error) {
	stmt, err := t.stmt(query)
	if err != nil {
		return nil, err
	}
	return stmt.ExecContext(context.Background(), args...)
}

// row reads the one row of a query; sql.ErrNoRows when there is none.
func (t *tx) row(query string, args []any, into ...any) error {
	stmt, err := t.stmt(query)
	if err != nil {
		return err
	}
	return stmt.QueryRowContext(context.Background(), args...).Scan(into...)
}

func (t *tx) close() {
	for _, stmt := range t.stmts {
		_ = stmt.Close() // nothing is open in it
	}
	t.stmts = nil
}
