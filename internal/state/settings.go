package state

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/sandpit-dev/sandpit"
)

// settingEvents holds the first number that no event has been promised.
const settingEvents = "events"

// Setting returns a value by its name, nil when it was never set.
func (s *Store) Setting(ctx context.Context, name string) ([]byte, error) {
	var value []byte
	err := s.view(ctx, func(c *sql.Conn) error {
		var err error
		value, err = setting(c, name)
		return err
	})
	return value, err
}

func setting(c *sql.Conn, name string) ([]byte, error) {
	var value []byte
	err := c.QueryRowContext(context.Background(), "SELECT value FROM settings WHERE name=?", name).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return value, err
}

// PutSetting sets a value.
func (s *Store) PutSetting(ctx context.Context, name string, value []byte) error {
	return s.update(ctx, func(c *sql.Conn) error { return putSetting(c, name, value) })
}

func putSetting(c *sql.Conn, name string, value []byte) error {
	if value == nil {
		value = []byte{}
	}
	_, err := c.ExecContext(context.Background(), "INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value=excluded.value", name, value)
	return err
}

// ReserveEvents returns the first of n numbers for events, which no other call
// gets, before or after a restart. The very first is 1. Take many at once:
// numbers that a server did not use when it died are a gap and no harm.
func (s *Store) ReserveEvents(ctx context.Context, n uint64) (first uint64, err error) {
	err = s.update(ctx, func(c *sql.Conn) error {
		value, err := setting(c, settingEvents)
		if err != nil {
			return err
		}
		switch len(value) {
		case 0:
			first = 1
		case 8:
			first = binary.BigEndian.Uint64(value)
		default:
			return fmt.Errorf("reading the number of the next event: %w", sandpit.ErrIntegrity)
		}
		return putSetting(c, settingEvents, binary.BigEndian.AppendUint64(nil, first+n))
	})
	return first, err
}
