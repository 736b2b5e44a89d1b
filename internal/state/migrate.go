package state

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// applicationID marks the database as Sandpit's in its header, where file(1)
// sees it (sqlite.org/pragma.html#pragma_application_id): "SPit".
const applicationID = 0x53506974

// migrations are the steps from an empty database to the newest schema. Step n
// makes version n+1 of version n. A step that was released is never changed.
//
// Step 1 also removes a table that was never used. Its version keeps earlier programs,
// which do not know records of version 2, from serving none of their sandboxes.
func migrations() []string {
	return []string{`
CREATE TABLE sandboxes (
	seq       INTEGER PRIMARY KEY,
	id        TEXT NOT NULL UNIQUE,
	namespace TEXT NOT NULL,
	name      TEXT NOT NULL,
	state     TEXT NOT NULL,
	created   INTEGER NOT NULL, -- Unix nanoseconds, as all times here
	data      BLOB NOT NULL,
	UNIQUE (namespace, name)
) STRICT;

CREATE TABLE keys (
	prefix    TEXT PRIMARY KEY,
	hash      BLOB NOT NULL, -- SHA-256 of the token
	namespace TEXT NOT NULL,
	policy    TEXT NOT NULL,
	admin     INTEGER NOT NULL,
	label     TEXT NOT NULL,
	created   INTEGER NOT NULL,
	expires   INTEGER, -- NULL: never
	revoked   INTEGER,
	used      INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE repeats (
	seq       INTEGER PRIMARY KEY,
	namespace TEXT NOT NULL,
	key       TEXT NOT NULL,
	hash      BLOB NOT NULL, -- of the request
	resource  TEXT NOT NULL, -- what it was to make
	status    INTEGER,       -- NULL: not answered
	response  BLOB,
	expires   INTEGER NOT NULL,
	UNIQUE (namespace, key)
) STRICT;
CREATE INDEX repeats_of ON repeats (namespace, seq);
CREATE INDEX repeats_expire ON repeats (expires);

CREATE TABLE webhooks (
	id        TEXT PRIMARY KEY,
	namespace TEXT NOT NULL,
	url       TEXT NOT NULL,
	secret    BLOB NOT NULL, -- sealed
	kinds     TEXT NOT NULL, -- JSON
	created   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE settings (
	name  TEXT PRIMARY KEY,
	value BLOB NOT NULL
) STRICT, WITHOUT ROWID;
`, `
ALTER TABLE sandboxes ADD COLUMN secret BLOB; -- sealed; NULL: none
DROP TABLE settings;
`, `
CREATE TABLE previews (
	id        TEXT PRIMARY KEY,
	sandbox   TEXT NOT NULL,
	port      INTEGER NOT NULL,
	namespace TEXT NOT NULL,
	key       TEXT NOT NULL, -- empty: of a peer of the unix socket
	name      TEXT NOT NULL,
	created   INTEGER NOT NULL,
	expires   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TRIGGER previews_of_sandbox AFTER DELETE ON sandboxes BEGIN
	DELETE FROM previews WHERE sandbox = OLD.id;
END;
CREATE TRIGGER previews_of_key AFTER UPDATE OF revoked ON keys BEGIN
	DELETE FROM previews WHERE key = OLD.prefix;
END;
`, `
CREATE TABLE secrets (
	sandbox TEXT PRIMARY KEY,
	secret  BLOB NOT NULL -- sealed
) STRICT;
INSERT INTO secrets SELECT id, secret FROM sandboxes WHERE secret IS NOT NULL;
ALTER TABLE sandboxes DROP COLUMN secret;
CREATE TRIGGER secrets_of_sandbox AFTER DELETE ON sandboxes BEGIN
	DELETE FROM secrets WHERE sandbox = OLD.id;
END;
`, `
CREATE TABLE stored_secrets (
	namespace TEXT NOT NULL, -- empty: the server's
	name      TEXT NOT NULL,
	binding   TEXT NOT NULL, -- JSON
	value     BLOB NOT NULL, -- sealed
	created   INTEGER NOT NULL,
	rotated   INTEGER NOT NULL,
	PRIMARY KEY (namespace, name)
) STRICT;
`}
}

// migrate brings a database to the newest schema, one step in one transaction. It refuses
// and does not touch a database of a newer version.
func migrate(ctx context.Context, conn *sql.Conn, file string, steps []string) error {
	var version, id, tables int
	for query, into := range map[string]*int{"PRAGMA user_version": &version, "PRAGMA application_id": &id, "SELECT count(*) FROM sqlite_schema": &tables} {
		if err := conn.QueryRowContext(ctx, query).Scan(into); err != nil {
			return fmt.Errorf("reading the schema: %w", err)
		}
	}
	switch {
	case tables > 0 && id != applicationID:
		return sandpit.WithHint(fault.Errorf(sandpit.ErrIntegrity, "reading the schema: %s is the database of another program", file), hintNotOurs)
	case version > len(steps):
		return sandpit.WithHint(
			fault.Errorf(sandpit.ErrState, "reading the schema: %s has schema %d, but this version of Sandpit supports only schemas up to %d", file, version, len(steps)),
			"use the newer version that wrote it, or restore its backup state.db.schema-N in the same directory")
	case version == len(steps):
		return nil
	case version > 0:
		if err := keepCopy(ctx, conn, file, version); err != nil {
			return err
		}
	}
	for ; version < len(steps); version++ {
		step := "BEGIN IMMEDIATE;" + steps[version] + "; PRAGMA application_id=" + strconv.Itoa(applicationID) +
			"; PRAGMA user_version=" + strconv.Itoa(version+1) + "; COMMIT"
		if _, err := conn.ExecContext(ctx, step); err != nil {
			_, _ = conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
			return fmt.Errorf("changing the schema from %d to %d: %w", version, version+1, err)
		}
	}
	return nil
}
