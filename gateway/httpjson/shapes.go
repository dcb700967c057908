package httpjson

import (
	"strings"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
)

// The JSON shapes of requests and answers. No field of an answer is ever left
// out.

type emptyJSON struct{}

func empty[A any](*A) any { return emptyJSON{} }

func openSessionIn(q *lockv1.OpenSessionRequest) fields {
	return fields{"client": text(&q.Client), "ttl_ms": optU64(&q.TtlMs)}
}

func openSessionOut(a *lockv1.OpenSessionResponse) any {
	return struct {
		SessionID string `json:"session_id"`
	}{a.SessionId}
}

func keepAliveIn(q *lockv1.KeepAliveRequest) fields {
	return fields{"session_id": text(&q.SessionId)}
}

type lostJSON struct {
	Name   string `json:"name"`
	Token  uint64 `json:"token"`
	Reason string `json:"reason"`
}

func keepAliveOut(a *lockv1.KeepAliveResponse) any {
	out := struct {
		Renewed    bool       `json:"renewed"`
		LeaseForMS uint64     `json:"lease_for_ms"`
		Lost       []lostJSON `json:"lost"`
	}{a.Renewed, a.LeaseForMs, []lostJSON{}}
	for _, l := range a.Lost {
		out.Lost = append(out.Lost, lostJSON{l.Name, l.Token,
			strings.ToLower(strings.TrimPrefix(l.Reason.String(), "LOST_REASON_"))})
	}
	return out
}

func closeSessionIn(q *lockv1.CloseSessionRequest) fields {
	return fields{"session_id": text(&q.SessionId)}
}

func acquireIn(q *lockv1.AcquireRequest) fields {
	return fields{"session_id": text(&q.SessionId), "name": text(&q.Name), "mode": mode(&q.Mode), "tier": tier(&q.Tier),
		"permits": optU32(&q.Permits), "limit": optU32(&q.Limit), "wait_ms": optU64(&q.WaitMs),
		"lock_delay_ms": optU64(&q.LockDelayMs), "request_id": text(&q.RequestId)}
}

func acquireOut(a *lockv1.AcquireResponse) any {
	if !a.Granted {
		return struct {
			Granted bool   `json:"granted"`
			Holder  string `json:"holder"`
		}{false, first(a.Holders).GetClient()}
	}
	return struct {
		Granted      bool   `json:"granted"`
		Token        uint64 `json:"token"`
		LeaseUntilMS int64  `json:"lease_until_ms"`
		LeaseForMS   uint64 `json:"lease_for_ms"`
	}{true, a.Token, a.LeaseUntilUnixMs, a.LeaseForMs}
}

func releaseIn(q *lockv1.ReleaseRequest) fields {
	return fields{"name": text(&q.Name), "token": u64(&q.Token), "session_id": text(&q.SessionId), "request_id": text(&q.RequestId)}
}

func cancelIn(q *lockv1.CancelRequest) fields {
	return fields{"session_id": text(&q.SessionId), "name": text(&q.Name), "request_id": text(&q.RequestId)}
}

func checkTokenIn(q *lockv1.CheckTokenRequest) fields {
	return fields{"name": text(&q.Name), "token": u64(&q.Token)}
}

func checkTokenOut(a *lockv1.CheckTokenResponse) any {
	return struct {
		Current bool `json:"current"`
	}{a.Current}
}

func describeIn(q *lockv1.DescribeRequest) fields { return fields{"name": text(&q.Name)} }

type holderJSON struct {
	Holder    string `json:"holder"`
	Token     uint64 `json:"token"`
	Mode      string `json:"mode"`
	Permits   uint32 `json:"permits"`
	HeldForMS uint64 `json:"held_for_ms"`
}

func holdersOut(hs []*lockv1.Holder) []holderJSON {
	out := []holderJSON{}
	for _, h := range hs {
		out = append(out, holderJSON{h.Client, h.Token, modeName(h.Mode), h.Permits, h.HeldForMs})
	}
	return out
}

func first(hs []*lockv1.Holder) *lockv1.Holder {
	if len(hs) == 0 {
		return nil
	}
	return hs[0]
}

func describeOut(a *lockv1.DescribeResponse) any {
	h := first(a.Holders)
	return struct {
		Holder    string       `json:"holder"`
		Token     uint64       `json:"token"`
		Waiters   uint64       `json:"waiters"`
		HeldForMS uint64       `json:"held_for_ms"`
		Mode      string       `json:"mode"`
		Holders   []holderJSON `json:"holders"`
	}{h.GetClient(), h.GetToken(), a.Waiters, h.GetHeldForMs(), modeName(a.Mode), holdersOut(a.Holders)}
}

func listIn(q *lockv1.ListRequest) fields {
	return fields{"prefix": text(&q.Prefix), "page_token": text(&q.PageToken), "page_size": optU32(&q.PageSize)}
}

type listedJSON struct {
	Name      string `json:"name"`
	Mode      string `json:"mode"`
	Holder    string `json:"holder"`
	Token     uint64 `json:"token"`
	Waiters   uint64 `json:"waiters"`
	HeldForMS uint64 `json:"held_for_ms"`
}

func listOut(a *lockv1.ListResponse) any {
	out := struct {
		Locks         []listedJSON `json:"locks"`
		NextPageToken string       `json:"next_page_token"`
	}{[]listedJSON{}, a.NextPageToken}
	for _, l := range a.Locks {
		h := first(l.Holders)
		out.Locks = append(out.Locks, listedJSON{l.Name, modeName(l.Mode), h.GetClient(), h.GetToken(), l.Waiters, h.GetHeldForMs()})
	}
	return out
}

func forceReleaseIn(q *lockv1.ForceReleaseRequest) fields {
	return fields{"name": text(&q.Name), "token": optU64(&q.Token), "reason": text(&q.Reason)}
}

func forceReleaseOut(a *lockv1.ForceReleaseResponse) any {
	return struct {
		Released []holderJSON `json:"released"`
	}{holdersOut(a.Released)}
}

func listSessionsIn(q *lockv1.ListSessionsRequest) fields {
	return fields{"client_prefix": text(&q.ClientPrefix), "max_sessions": optU32(&q.MaxSessions)}
}

type sessionJSON struct {
	ID     string `json:"id"`
	Client string `json:"client"`
	TTLMS  uint64 `json:"ttl_ms"`
	Holds  uint64 `json:"holds"`
	Waits  uint64 `json:"waits"`
	Shards uint32 `json:"shards"`
}

func listSessionsOut(a *lockv1.ListSessionsResponse) any {
	out := struct {
		Sessions  []sessionJSON `json:"sessions"`
		Truncated bool          `json:"truncated"`
	}{[]sessionJSON{}, a.Truncated}
	for _, s := range a.Sessions {
		out.Sessions = append(out.Sessions, sessionJSON{s.Id, s.Client, s.TtlMs, s.Holds, s.Waits, s.Shards})
	}
	return out
}

func revokeSessionIn(q *lockv1.RevokeSessionRequest) fields {
	return fields{"id": text(&q.Id), "reason": text(&q.Reason)}
}

func revokeSessionOut(a *lockv1.RevokeSessionResponse) any {
	return struct {
		HoldsReleased uint64 `json:"holds_released"`
	}{a.HoldsReleased}
}
