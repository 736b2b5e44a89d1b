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
	err := s.view(ctx, func(t *tx) error {
		var err error
		value, err = setting(t, name)
		return err
	})
	return value, err
}

func setting(t *tx, name string) ([]byte, error) {
	var value []byte
	err := t.row("SELECT value FROM settings WHERE name=?", []any{name}, &value)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return value, err
}

// PutSetting sets a value.
func (s *Store) PutSetting(ctx context.Context, name string, value []byte) error {
	return s.update(ctx, func(t *tx) error { return putSetting(t, name, value) })
}

func putSetting(t *tx, name string, value []byte) error {
	if value == nil {
		value = []byte{}
	}
	_, err := t.exec("INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value=excluded.value", name, value)
	return err
}

// ReserveEvents returns the first of n numbers for events, which no other call
// gets, before or after a restart. The very first is 1. Take many at once:
// numbers that a server did not use when it died are a gap and no harm.
func (s *Store) ReserveEvents(ctx context.Context, n uint64) (first uint64, err error) {
	err = s.update(ctx, func(t *tx) error {
		value, err := setting(t, settingEvents)
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
		return putSetting(t, settingEvents, binary.BigEndian.AppendUint64(nil, first+n))
	})
	return first, err
}
