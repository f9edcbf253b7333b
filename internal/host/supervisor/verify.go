package supervisor

import (
	"context"
	"encoding/json"

	"foldyard/internal/host/control"
)

// Verify runs the battery in a box and stores what it showed.
func (s *Supervisor) Verify(ctx context.Context, q control.VerifyRequest) (json.RawMessage, error) {
	if !s.verifying.TryLock() {
		return nil, &control.Error{Code: control.CodeConflict, Detail: "a verify runs already"}
	}
	defer s.verifying.Unlock()
	return nil, &control.Error{Code: control.CodeInternal, Detail: "not wired yet"}
}
