package core

import (
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
	"github.com/mortise-lock/mortise/shard"
	"google.golang.org/grpc/codes"
)

// named sends a call that concerns one name and no session.
func (c *Core) named(cl *call, name string, now Time, out *Output) {
	cl.name = name
	s := c.route(name, cl, now)
	if s == nil {
		return
	}
	cl.shard = s
	q := &request{owner: cl}
	switch r := cl.req.(type) {
	case *lockv1.DescribeRequest:
		q.pb.Op = &nodev1.Request_Describe{Describe: &nodev1.Describe{Name: r.Name}}
	case *lockv1.CheckTokenRequest:
		q.pb.Op = &nodev1.Request_CheckToken{CheckToken: &nodev1.CheckToken{Name: r.Name, Token: r.Token}}
	case *lockv1.ReleaseRequest:
		q.pb.Op = &nodev1.Request_Release{Release: &nodev1.Release{Name: r.Name, Token: r.Token}}
	case *lockv1.ForceReleaseRequest:
		q.pb.Op = &nodev1.Request_ForceRelease{ForceRelease: &nodev1.ForceRelease{Name: r.Name, Token: r.GetToken(),
			By: "operator", Reason: r.Reason}}
	}
	cl.reqs = append(cl.reqs[:0], q)
	c.start(s, q, now, out)
}

func (cl *call) again(c *Core, now Time, out *Output) {
	if !cl.ended {
		c.named(cl, cl.name, now, out)
	}
}

// answered takes the answer to a named call.
func (cl *call) answered(c *Core, r *request, resp *nodev1.Response, now Time, out *Output) {
	if cl.ended {
		return
	}
	f := resp.Failure
	switch q := cl.req.(type) {
	case *lockv1.DescribeRequest:
		d := resp.GetDescribe()
		if d != nil {
			d.Name, d.Shard = q.Name, uint32(cl.shard.id)
		}
		c.answer(cl, d, f, out)
	case *lockv1.CheckTokenRequest:
		c.answer(cl, resp.GetCheckToken(), f, out)
	case *lockv1.ReleaseRequest:
		if r.doubt && reason(f) == ReasonTokenNotCurrent {
			f = nil // see unaryRefused
		}
		c.answer(cl, &lockv1.ReleaseResponse{}, f, out)
	case *lockv1.ForceReleaseRequest:
		fr := resp.GetForceRelease()
		if r.doubt && reason(f) == ReasonTokenNotCurrent {
			f, fr = nil, &lockv1.ForceReleaseResponse{}
		}
		if f == nil {
			c.note(out, true, "force release", "name", q.Name, "token", q.GetToken(), "reason", q.Reason,
				"released", len(fr.GetReleased()), "shard", uint32(cl.shard.id))
		}
		c.answer(cl, fr, f, out)
	}
}

func (c *Core) forceRelease(cl *call, r *lockv1.ForceReleaseRequest, now Time, out *Output) *lockv1.Failure {
	if f := checkName(r.Name); f != nil {
		return f
	}
	if r.Token != nil {
		if f := checkToken(*r.Token); f != nil {
			return f
		}
	}
	if f := checkText("reason", r.Reason, MaxReasonBytes); f != nil {
		return f
	}
	c.named(cl, r.Name, now, out)
	return nil
}

// ---- calls to all shards ---------------------------------------------------

// part is a call's question to one shard.
type part struct {
	request
	cl   *call
	to   *shardState
	resp *nodev1.Response
}

func (p *part) again(c *Core, now Time, out *Output) {}

func (p *part) answered(c *Core, r *request, resp *nodev1.Response, now Time, out *Output) {
	cl := p.cl
	if cl.ended {
		return
	}
	if f := resp.Failure; f != nil && !(p.pb.GetClose() != nil && isRegistrationGone(f)) {
		c.answer(cl, nil, f, out)
		return
	}
	p.resp = resp
	cl.count += resp.GetClose().GetHoldsReleased()
	if cl.left--; cl.left > 0 {
		return
	}
	switch q := cl.req.(type) {
	case *lockv1.ListRequest:
		c.answer(cl, mergeLists(cl.parts, pageSize(q)), nil, out)
	case *lockv1.ListSessionsRequest:
		c.answer(cl, mergeSessions(cl.parts, q), nil, out)
	default:
		c.closedEverywhere(cl, out)
	}
}

// fanOut asks every shard of the map.
func (c *Core) fanOut(cl *call, fill func(*nodev1.Request), now Time, out *Output) *lockv1.Failure {
	if c.router == nil {
		return c.noLeader(nil)
	}
	cl.left = len(c.shardList)
	for _, s := range c.shardList {
		p := &part{cl: cl, to: s}
		p.owner = p
		fill(&p.pb)
		cl.parts = append(cl.parts, p)
		cl.reqs = append(cl.reqs, &p.request)
		c.start(s, &p.request, now, out)
	}
	return nil
}

func pageSize(r *lockv1.ListRequest) int {
	if r.PageSize == nil {
		return DefaultPageSize
	}
	return int(*r.PageSize)
}

func (c *Core) listUnary(cl *call, r *lockv1.ListRequest, now Time, out *Output) *lockv1.Failure {
	if r.Prefix != "" {
		if f := checkName(r.Prefix); f != nil {
			return invalid("prefix", "must be empty or at most 512 bytes of UTF-8 without control characters")
		}
	}
	if n := pageSize(r); n < 1 || n > MaxPageSize {
		return invalid("page_size", fmt.Sprintf("must be 1 to %d (is %d); leave it out for %d", MaxPageSize, n, DefaultPageSize))
	}
	after, err := base64.RawURLEncoding.DecodeString(r.PageToken)
	if err != nil || (len(after) > 0 && checkName(string(after)) != nil) {
		return invalid("page_token", "must be empty or the next_page_token of an earlier answer")
	}
	return c.fanOut(cl, func(q *nodev1.Request) {
		q.Op = &nodev1.Request_List{List: &nodev1.List{Prefix: r.Prefix, After: string(after), Max: uint32(pageSize(r))}}
	}, now, out)
}

// mergeLists merges the shards' pages in name order. Each shard sent its first
// n names, so the first n of all are among them.
func mergeLists(parts []*part, n int) *lockv1.ListResponse {
	resp := &lockv1.ListResponse{}
	more := false
	for _, p := range parts {
		l := p.resp.GetList()
		for _, d := range l.GetLocks() {
			d.Shard = uint32(p.to.id)
			resp.Locks = append(resp.Locks, d)
		}
		more = more || l.GetMore()
	}
	slices.SortFunc(resp.Locks, func(a, b *lockv1.DescribeResponse) int { return strings.Compare(a.Name, b.Name) })
	if len(resp.Locks) > n {
		resp.Locks, more = resp.Locks[:n], true
	}
	if more && len(resp.Locks) > 0 {
		resp.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(resp.Locks[len(resp.Locks)-1].Name))
	}
	return resp
}

// maxRegistrationsAsked bounds one shard's answer to ListSessions.
const maxRegistrationsAsked = 100_000

func (c *Core) listSessions(cl *call, r *lockv1.ListSessionsRequest, now Time, out *Output) *lockv1.Failure {
	if r.MaxSessions != nil && (*r.MaxSessions < 1 || *r.MaxSessions > MaxSessions) {
		return invalid("max_sessions", fmt.Sprintf("must be 1 to %d (is %d); leave it out for %d", MaxSessions, *r.MaxSessions, DefaultSessions))
	}
	if len(r.ClientPrefix) > MaxClientBytes {
		return invalid("client_prefix", fmt.Sprintf("must be at most %d bytes", MaxClientBytes))
	}
	return c.fanOut(cl, func(q *nodev1.Request) {
		q.Op = &nodev1.Request_ListRegistrations{ListRegistrations: &nodev1.ListRegistrations{Max: maxRegistrationsAsked}}
	}, now, out)
}

func mergeSessions(parts []*part, r *lockv1.ListSessionsRequest) *lockv1.ListSessionsResponse {
	limit := DefaultSessions
	if r.MaxSessions != nil {
		limit = int(*r.MaxSessions)
	}
	resp := &lockv1.ListSessionsResponse{}
	byID := map[string]*lockv1.SessionInfo{}
	for _, p := range parts {
		list := p.resp.GetListRegistrations().GetRegistrations()
		resp.Truncated = resp.Truncated || len(list) >= maxRegistrationsAsked
		for _, g := range list {
			if !strings.HasPrefix(g.Client, r.ClientPrefix) {
				continue
			}
			s := byID[string(g.SessionId)]
			if s == nil {
				s = &lockv1.SessionInfo{Id: hex.EncodeToString(g.SessionId), Client: g.Client, TtlMs: g.TtlMs}
				byID[string(g.SessionId)] = s
				resp.Sessions = append(resp.Sessions, s)
			}
			s.Holds += g.Holds
			s.Waits += g.Waits
			s.Shards++
		}
	}
	slices.SortFunc(resp.Sessions, func(a, b *lockv1.SessionInfo) int {
		return cmp.Or(strings.Compare(a.Client, b.Client), strings.Compare(a.Id, b.Id))
	})
	if len(resp.Sessions) > limit {
		resp.Sessions, resp.Truncated = resp.Sessions[:limit], true
	}
	return resp
}

func (c *Core) revoke(cl *call, r *lockv1.RevokeSessionRequest, now Time, out *Output) *lockv1.Failure {
	id, f := checkSessionHex(r.Id)
	if f != nil {
		return f
	}
	if f := checkText("reason", r.Reason, MaxReasonBytes); f != nil {
		return f
	}
	c.closeEverywhere(cl, id, lockv1.LostReason_LOST_REASON_REVOKED, now, out)
	return nil
}

// closeEverywhere finds a session's registrations and closes each.
func (c *Core) closeEverywhere(cl *call, id shard.SessionID, why lockv1.LostReason, now Time, out *Output) {
	cl.loc = c.locate(id, func(l *nodev1.Located, now Time, out *Output) { cl.addFound(l) }, func(now Time, out *Output) {
		cl.loc = nil
		if len(cl.found) == 0 {
			c.closedEverywhere(cl, out)
			return
		}
		cl.left = len(cl.found)
		for _, l := range cl.found {
			s := c.shards[shardID(l.Shard)]
			if s == nil {
				cl.left--
				continue
			}
			p := &part{cl: cl, to: s}
			p.owner = p
			p.pb.Op = &nodev1.Request_Close{Close: &nodev1.CloseRegistration{Registration: l.Registration, Reason: why}}
			cl.parts = append(cl.parts, p)
			cl.reqs = append(cl.reqs, &p.request)
		}
		for _, p := range cl.parts {
			c.start(p.to, &p.request, now, out)
		}
	}, now, out)
}

func (c *Core) closedEverywhere(cl *call, out *Output) {
	switch q := cl.req.(type) {
	case *lockv1.CloseSessionRequest:
		if id, f := c.verify(q.SessionId); f == nil {
			if s := c.unary[id.Session]; s != nil {
				s.hadRegs = true // a KeepAlive from here on renews nothing
			}
		}
		c.answer(cl, &lockv1.CloseSessionResponse{}, nil, out)
	case *lockv1.RevokeSessionRequest:
		if len(cl.found) == 0 {
			c.answer(cl, nil, fail(codes.NotFound, ReasonSessionEnded, "id", "must be a live session",
				"no shard knows a session with this id"), out)
			return
		}
		c.note(out, true, "revoke session", "session", q.Id, "reason", q.Reason, "holds_released", cl.count)
		c.answer(cl, &lockv1.RevokeSessionResponse{HoldsReleased: cl.count}, nil, out)
	}
}
