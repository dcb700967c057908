package checker

import "github.com/mortise-lock/mortise/ops/history"

// store computes what the protected store had to answer to each write.
func (x *index) store() {
	type last struct {
		token uint64
		event int
	}
	seen := map[string]last{}
	for i := range x.ev {
		e := &x.ev[i]
		if e.Kind != history.Write {
			continue
		}
		x.opts.Stats.Writes++
		if e.Unchecked {
			continue
		}
		s, ok := seen[e.Name]
		should := !ok || e.Token >= s.token
		switch {
		case e.Accepted && !should:
			x.report("P2", "fence", i, []int{s.event, i}, "store of %q: at %v a write of client %d with token %d was accepted, though client %d wrote with token %d at %s; it had to be refused",
				e.Name, when(e.At), e.Client, e.Token, x.ev[s.event].Client, s.token, x.at(s.event))
		case !e.Accepted && should:
			x.report("P2", "fence", i, []int{i}, "store of %q: at %v a write of client %d with token %d was refused, though no greater token was seen (the greatest is %d); it had to be accepted",
				e.Name, when(e.At), e.Client, e.Token, s.token)
		}
		if e.Accepted && should {
			seen[e.Name] = last{e.Token, i}
		}
	}
}
