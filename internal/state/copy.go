package state

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
)

// keepCopy copies a database before its schema is changed, for a return to the version that
// made it. The first copy of each schema is kept.
func keepCopy(ctx context.Context, conn *sql.Conn, file string, version int) error {
	name := file + ".schema-" + strconv.Itoa(version)
	if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	part := name + ".part"
	_ = os.Remove(part)
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // VACUUM takes an empty file
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = conn.ExecContext(ctx, "VACUUM INTO ?", part)
	if err == nil {
		err = f.Sync() // which VACUUM leaves to others
	}
	if err != nil {
		_ = os.Remove(part)
		return fmt.Errorf("backing up the database before a schema change: %w", err)
	}
	return os.Rename(part, name)
}
