package core

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"github.com/mortise-lock/mortise/shard"
	"google.golang.org/grpc/codes"
)

func checkName(name string) *lockv1.Failure {
	err := shard.ValidateName(name)
	if err == nil {
		return nil
	}
	var rule *shard.RuleError
	if errors.As(err, &rule) {
		f := invalid("name", rule.Rule)
		f.Message = err.Error()
		return f
	}
	return invalid("name", err.Error())
}

// checkText checks a text for people: 1 to max bytes of UTF-8 without control
// characters.
func checkText(field, s string, max int) *lockv1.Failure {
	rule := fmt.Sprintf("must be 1 to %d bytes of UTF-8 without control characters", max)
	if s == "" || len(s) > max || !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
		return invalid(field, rule)
	}
	return nil
}

// checkTTL returns the TTL asked for; unset is the default, zero is refused.
func checkTTL(ms *uint64) (time.Duration, *lockv1.Failure) {
	if ms == nil {
		return DefaultTTL, nil
	}
	if *ms < uint64(MinTTL/time.Millisecond) || *ms > uint64(MaxTTL/time.Millisecond) {
		return 0, invalid("ttl_ms", fmt.Sprintf("must be 1000 to 600000 (is %d); leave it out for %d", *ms, DefaultTTL/time.Millisecond))
	}
	return time.Duration(*ms) * time.Millisecond, nil
}

func checkToken(token uint64) *lockv1.Failure {
	if token == 0 || token > MaxToken {
		return invalid("token", fmt.Sprintf("must be 1 to %d (is %d)", uint64(MaxToken), token))
	}
	return nil
}

// acquireParams are the fields that stream and unary acquires share.
type acquireParams struct {
	name    string
	mode    lockv1.Mode
	permits uint32
	limit   uint32
	waitMS  uint64
	delayMS uint64
}

// acquireFields is what both kinds of acquire messages offer.
type acquireFields interface {
	GetName() string
	GetMode() lockv1.Mode
	GetTier() lockv1.Tier
	GetWaitMs() uint64
	GetLockDelayMs() uint64
}

func checkAcquire(m acquireFields, permits, limit *uint32) (acquireParams, *lockv1.Failure) {
	p := acquireParams{name: m.GetName(), mode: m.GetMode(), permits: 1, waitMS: m.GetWaitMs(), delayMS: m.GetLockDelayMs()}
	if f := checkName(p.name); f != nil {
		return p, f
	}
	switch p.mode {
	case lockv1.Mode_MODE_UNSPECIFIED:
		p.mode = lockv1.Mode_MODE_EXCLUSIVE
	case lockv1.Mode_MODE_EXCLUSIVE, lockv1.Mode_MODE_SHARED, lockv1.Mode_MODE_COUNTED:
	default:
		return p, invalid("mode", fmt.Sprintf("must be exclusive (1), shared (2) or counted (3) (is %d)", p.mode))
	}
	switch m.GetTier() {
	case lockv1.Tier_TIER_UNSPECIFIED, lockv1.Tier_TIER_STRICT:
	case lockv1.Tier_TIER_FAST:
		return p, fail(codes.FailedPrecondition, ReasonFastTierOff, "tier", "must be strict",
			"this version has no fast tier; leave tier out or ask for strict")
	default:
		return p, invalid("tier", fmt.Sprintf("must be strict (1) or fast (2) (is %d)", m.GetTier()))
	}
	if p.mode == lockv1.Mode_MODE_COUNTED {
		if limit == nil || *limit == 0 || *limit > MaxPermits {
			return p, invalid("limit", fmt.Sprintf("must be 1 to %d for a counted lock", MaxPermits))
		}
		p.limit = *limit
		if permits != nil {
			p.permits = *permits
		}
		if p.permits == 0 || p.permits > p.limit {
			return p, invalid("permits", fmt.Sprintf("must be 1 to limit, which is %d (is %d)", p.limit, p.permits))
		}
	} else {
		if limit != nil {
			return p, invalid("limit", "is for counted locks only; set mode to counted or leave it out")
		}
		if permits != nil && *permits != 1 {
			return p, invalid("permits", "is for counted locks only; set mode to counted or leave it out")
		}
	}
	if p.waitMS > MaxWaitMS {
		return p, invalid("wait_ms", fmt.Sprintf("must be 0 to %d (is %d)", MaxWaitMS, p.waitMS))
	}
	if p.delayMS > MaxLockDelayMS {
		return p, invalid("lock_delay_ms", fmt.Sprintf("must be 0 to %d (is %d)", MaxLockDelayMS, p.delayMS))
	}
	return p, nil
}

// checkRequestID reads 32 hexadecimal digits into 16 bytes, not all zero.
func checkRequestID(s string) ([]byte, *lockv1.Failure) {
	id, err := hex.DecodeString(s)
	if err != nil || len(id) != 16 || strings.Trim(s, "0") == "" {
		return nil, invalid("request_id", "must be 32 hexadecimal digits, not all zero")
	}
	return id, nil
}

// checkSessionHex reads SessionInfo.id.
func checkSessionHex(s string) (id shard.SessionID, f *lockv1.Failure) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(id) {
		return id, invalid("id", "must be 32 hexadecimal digits, as ListSessions shows it")
	}
	copy(id[:], b)
	return id, nil
}

// session verifies a session string.
func (c *Core) verify(s string) (Identity, *lockv1.Failure) {
	if s == "" {
		return Identity{}, invalid("session_id", "must be set; OpenSession gives one")
	}
	id, err := c.cfg.Sessions.Verify(s)
	if err != nil {
		return Identity{}, fail(codes.InvalidArgument, ReasonBadSession, "session_id",
			"must be a string that this cluster's OpenSession or session stream returned", "session_id is "+err.Error())
	}
	return id, nil
}
