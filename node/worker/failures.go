package worker

import (
	"errors"
	"fmt"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"google.golang.org/grpc/codes"
)

// Reasons are the stable words of ErrorDetail.reason that a node uses.
const (
	// Nothing was proposed; ask the leader (or later).
	ReasonNotLeader    = "NOT_LEADER"
	ReasonTransferring = "TRANSFERRING"
	// The same request must be asked again.
	ReasonOutcomeUnknown = "OUTCOME_UNKNOWN"
	// A read could not be confirmed in time.
	ReasonNoQuorum = "NO_QUORUM"
	// A limit of this node was reached.
	ReasonOverloaded = "SHARD_OVERLOADED"

	ReasonNotOwner        = "NOT_OWNER"
	ReasonNoRegistration  = "NO_REGISTRATION"
	ReasonOldAttachment   = "OLD_ATTACHMENT"
	ReasonStale           = "STALE_REQUEST"
	ReasonReused          = "REQUEST_ID_REUSED"
	ReasonTokenNotCurrent = "TOKEN_NOT_CURRENT"
	ReasonModeConflict    = "MODE_CONFLICT"
	ReasonLimitDisagrees  = "LIMIT_DISAGREES"
	ReasonLimit           = "LIMIT_REACHED"
	ReasonInvalid         = "INVALID_FIELD"
)

func fail(code codes.Code, reason, format string, args ...any) *lockv1.Failure {
	return &lockv1.Failure{Code: int32(code), Message: fmt.Sprintf(format, args...), Detail: &lockv1.ErrorDetail{Reason: reason}}
}

func invalid(field, rule string) *lockv1.Failure {
	f := fail(codes.InvalidArgument, ReasonInvalid, "%s %s", field, rule)
	f.Detail.Field, f.Detail.Rule = field, rule
	return f
}

func (r *replica) hint() *nodev1.LeaderHint {
	return &nodev1.LeaderHint{Shard: uint32(r.shard), Term: r.term, Node: uint64(r.node(r.lead))}
}

// refuse answers a request with a failure.
func (w *Worker) refuse(s StreamID, id uint64, f *lockv1.Failure, leader *nodev1.LeaderHint) {
	w.respond(s, &nodev1.Response{Id: id, Failure: f, Leader: leader})
}

func (w *Worker) respond(s StreamID, resp *nodev1.Response) {
	if s == 0 {
		return
	}
	w.out.Replies = append(w.out.Replies, Reply{Stream: s, Response: resp})
}

func (r *replica) notLeader(s StreamID, id uint64) {
	f := fail(codes.Unavailable, ReasonNotLeader, "node %d does not lead shard %d", r.w.cfg.Node, r.shard)
	f.Detail.Shard = uint32(r.shard)
	hint := r.hint()
	if hint.Node == uint64(r.w.cfg.Node) {
		hint.Node = 0 // it is about to be otherwise
	}
	if hint.Node == 0 {
		f.Detail.RetryAfterMs = 50
	}
	r.w.refuse(s, id, f, hint)
}

func (r *replica) outcomeUnknown(s StreamID, id uint64) {
	r.w.counters.OutcomeUnknown++
	f := fail(codes.Unavailable, ReasonOutcomeUnknown, "shard %d changed its leader before the outcome was known; ask the same again", r.shard)
	f.Detail.Shard = uint32(r.shard)
	r.w.refuse(s, id, f, r.hint())
}

func (r *replica) overloaded(s StreamID, id uint64, limit string, value int) {
	r.w.counters.Refused++
	f := fail(codes.ResourceExhausted, ReasonOverloaded, "shard %d has reached the limit %s of %d; ask again in a moment", r.shard, limit, value)
	f.Detail.Shard, f.Detail.LimitName, f.Detail.LimitValue, f.Detail.RetryAfterMs = uint32(r.shard), limit, uint64(value), 100
	r.w.refuse(s, id, f, nil)
}

// Errors of MapProposed and TransferDone.
var (
	// ErrNotLeader: this node does not lead the shard; nothing was proposed.
	ErrNotLeader = errors.New("this node does not lead the shard")
	// ErrInvalid: the command can't be applied; nothing was proposed.
	ErrInvalid = errors.New("no legal map command")
	// ErrOverloaded: too much waits already; nothing was proposed.
	ErrOverloaded = errors.New("too many proposals wait")
	// ErrOutcomeUnknown: the leader lost its office before the entry applied.
	ErrOutcomeUnknown = errors.New("leadership was lost before the outcome was known")
	// ErrTransferBusy: another transfer of the shard is in progress.
	ErrTransferBusy = errors.New("a leader transfer of this shard is in progress")
	// ErrTransferTarget: the target can't lead: it is no voter, or lags, or is down.
	ErrTransferTarget = errors.New("the target is not a caught-up voter of the shard")
	// ErrTransferFailed: the target did not take over in time; the old leader goes on.
	ErrTransferFailed = errors.New("the target did not take over in time")
	// ErrOtherLeader: another replica than the target came to lead.
	ErrOtherLeader = errors.New("another replica than the target took over")
)
