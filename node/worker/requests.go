package worker

import (
	"unicode"
	"unicode/utf8"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"github.com/mortise-lock/mortise/shard"
	"google.golang.org/grpc/codes"
)

// Bounds that gateways check in their own words; here they are the second
// line, so that nothing wrong gets into a log.
const (
	minTTL       = 1_000
	maxTTL       = 600_000
	maxWait      = 86_400_000
	maxLockDelay = 60_000
	maxClient    = 256
	maxText      = 512
	maxToken     = 1<<53 - 1
	maxPermits   = 1 << 20
	ms           = 1_000_000 // ns
)

// request takes one command or read in.
func (w *Worker) request(q *Request) {
	req := q.Req
	if op, ok := req.GetOp().(*nodev1.Request_Locate); ok {
		w.locate(q.Stream, req.Id, op.Locate)
		return
	}
	r := w.byShard[shard.ID(req.GetShard())]
	if r == nil || r.m == nil {
		f := fail(codes.Unavailable, ReasonNotLeader, "node %d has no replica of lock shard %d", w.cfg.Node, req.GetShard())
		f.Detail.Shard, f.Detail.RetryAfterMs = req.GetShard(), 100
		w.refuse(q.Stream, req.GetId(), f, &nodev1.LeaderHint{Shard: req.GetShard()})
		return
	}
	if isRead(req) {
		r.admitRead(q.Stream, req)
		return
	}
	var c shard.Command
	if f := command(req, &c); f != nil {
		w.refuse(q.Stream, req.Id, f, nil)
		return
	}
	r.admit(q.Stream, req.Id, &c)
}

func isRead(req *nodev1.Request) bool {
	switch req.Op.(type) {
	case *nodev1.Request_Describe, *nodev1.Request_List, *nodev1.Request_Inventory, *nodev1.Request_CheckToken,
		*nodev1.Request_ListRegistrations:
		return true
	}
	return false
}

// command turns a request into a state machine command, or refuses it.
func command(req *nodev1.Request, c *shard.Command) *lockv1.Failure {
	switch op := req.Op.(type) {
	case *nodev1.Request_Register:
		q := op.Register
		c.Kind, c.Client, c.TTL, c.Attachment = shard.KindRegister, q.Client, int64(q.TtlMs)*ms, q.Attachment
		switch {
		case len(q.SessionId) != len(c.Session):
			return invalid("session_id", "must be 16 bytes")
		case q.TtlMs < minTTL || q.TtlMs > maxTTL:
			return invalid("ttl_ms", "must be 1000 to 600000")
		case !isText(q.Client, maxClient):
			return invalid("client", "must be 1 to 256 bytes of UTF-8 without control characters")
		}
		copy(c.Session[:], q.SessionId)
		return nil
	case *nodev1.Request_Attach:
		c.Kind, c.Registration, c.Attachment = shard.KindAttach, shard.Registration(op.Attach.Registration), op.Attach.Attachment
		if c.Attachment == 0 {
			return invalid("attachment", "must be 1 or more")
		}
		return checkRegistration(c)
	case *nodev1.Request_Acquire:
		return acquireCommand(op.Acquire, c)
	case *nodev1.Request_Cancel:
		c.Kind, c.Name = shard.KindCancel, op.Cancel.Name
		acting(op.Cancel.Acting, c)
		if f := checkRegistration(c); f != nil {
			return f
		}
		if f := checkName(c.Name); f != nil {
			return f
		}
		return acquireID(op.Cancel.Id, c, true)
	case *nodev1.Request_Release:
		q := op.Release
		c.Kind, c.Name, c.Token = shard.KindRelease, q.Name, shard.Token(q.Token)
		acting(q.Acting, c)
		if q.Token == 0 || q.Token > maxToken {
			return invalid("token", "must be 1 to 9007199254740991")
		}
		if f := checkName(c.Name); f != nil {
			return f
		}
		return acquireID(q.Id, c, false)
	case *nodev1.Request_Close:
		c.Kind, c.Registration, c.Attachment = shard.KindClose, shard.Registration(op.Close.Registration), op.Close.Attachment
		switch op.Close.Reason {
		case lockv1.LostReason_LOST_REASON_REVOKED:
			c.Reason = shard.ReasonRevoked
		default:
			c.Reason = shard.ReasonClosed
		}
		return checkRegistration(c)
	case *nodev1.Request_ForceRelease:
		q := op.ForceRelease
		c.Kind, c.Name, c.Token, c.By, c.Why = shard.KindForceRelease, q.Name, shard.Token(q.Token), q.By, q.Reason
		switch {
		case q.Token > maxToken:
			return invalid("token", "must be at most 9007199254740991")
		case !isText(q.By, maxText):
			return invalid("by", "must be 1 to 512 bytes of UTF-8 without control characters")
		case !isText(q.Reason, maxText):
			return invalid("reason", "must be 1 to 512 bytes of UTF-8 without control characters")
		}
		return checkName(c.Name)
	}
	return invalid("op", "must be one that this node knows")
}

func acquireCommand(q *nodev1.Acquire, c *shard.Command) *lockv1.Failure {
	c.Kind, c.Name, c.Mode = shard.KindAcquire, q.Name, shard.Mode(q.Mode)
	c.Wait, c.LockDelay = int64(q.WaitMs)*ms, int64(q.LockDelayMs)*ms
	acting(q.Acting, c)
	if f := checkRegistration(c); f != nil {
		return f
	}
	if f := checkName(c.Name); f != nil {
		return f
	}
	switch {
	case q.Mode == lockv1.Mode_MODE_COUNTED && (q.Limit == 0 || q.Limit > maxPermits):
		return invalid("limit", "must be 1 to 1048576 in mode counted")
	case q.Mode == lockv1.Mode_MODE_COUNTED && (q.Permits == 0 || q.Permits > q.Limit):
		return invalid("permits", "must be 1 to limit")
	case q.Mode != lockv1.Mode_MODE_COUNTED && (q.Limit != 0 || q.Permits > 1):
		return invalid("permits", "and limit belong to mode counted")
	case q.Mode < lockv1.Mode_MODE_EXCLUSIVE || q.Mode > lockv1.Mode_MODE_COUNTED:
		return invalid("mode", "must be exclusive, shared or counted")
	case q.WaitMs > maxWait:
		return invalid("wait_ms", "must be at most 86400000")
	case q.LockDelayMs > maxLockDelay:
		return invalid("lock_delay_ms", "must be at most 60000")
	}
	if c.Mode == shard.Counted {
		c.Permits, c.Limit = q.Permits, q.Limit
	}
	return acquireID(q.Id, c, true)
}

func acting(a *nodev1.Acting, c *shard.Command) {
	c.Registration, c.Attachment, c.DoneBelow = shard.Registration(a.GetRegistration()), a.GetAttachment(), a.GetDoneBelow()
}

func acquireID(id *nodev1.AcquireId, c *shard.Command, need bool) *lockv1.Failure {
	n := len(id.GetRequestId())
	switch {
	case n != 0 && n != len(c.Acquire.RequestID):
		return invalid("request_id", "must be 16 bytes")
	case n != 0 && id.GetSeq() != 0:
		return invalid("id", "must have seq or request_id, not both")
	case n == 0 && id.GetSeq() == 0 && need:
		return invalid("id", "must have seq or request_id")
	}
	c.Acquire.Seq = id.GetSeq()
	copy(c.Acquire.RequestID[:], id.GetRequestId())
	if c.Acquire == (shard.AcquireID{}) && need {
		return invalid("request_id", "must not be all zero")
	}
	return nil
}

func checkRegistration(c *shard.Command) *lockv1.Failure {
	if c.Registration == 0 {
		return invalid("registration", "must not be 0")
	}
	return nil
}

func checkName(name string) *lockv1.Failure {
	if err := shard.ValidateName(name); err != nil {
		f := invalid("name", "must be 1 to 512 bytes of UTF-8 without control characters")
		f.Message = err.Error()
		return f
	}
	return nil
}

func isText(s string, limit int) bool {
	if s == "" || len(s) > limit || !utf8.ValidString(s) {
		return false
	}
	for _, c := range s {
		if unicode.IsControl(c) {
			return false
		}
	}
	return true
}
