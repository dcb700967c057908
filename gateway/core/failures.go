package core

import (
	"fmt"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"google.golang.org/grpc/codes"
)

// Reasons are the stable words of ErrorDetail.reason that a gateway uses by
// itself; those of nodes are passed on.
const (
	ReasonInvalid         = "INVALID_FIELD"
	ReasonFastTierOff     = "FAST_TIER_OFF"
	ReasonBadSession      = "SESSION_INVALID"
	ReasonSessionEnded    = "SESSION_ENDED"
	ReasonSuperseded      = "ATTACHMENT_SUPERSEDED"
	ReasonStale           = "STALE_REQUEST"
	ReasonSeqReused       = "SEQ_REUSED"
	ReasonProtocol        = "PROTOCOL"
	ReasonFrameTooLarge   = "FRAME_TOO_LARGE"
	ReasonSilent          = "STREAM_SILENT"
	ReasonLimit           = "LIMIT_REACHED"
	ReasonNoLeader        = "NO_LEADER"
	ReasonNoMap           = "NO_MAP"
	ReasonShuttingDown    = "SHUTTING_DOWN"
	ReasonTokenNotCurrent = "TOKEN_NOT_CURRENT"
	ReasonCancelled       = "CANCELLED"
	ReasonHoldOver        = "HOLD_OVER"
	ReasonLeaseOver       = "LEASE_OVER"

	// Of nodes, acted upon here.
	reasonNotLeader      = "NOT_LEADER"
	reasonOutcomeUnknown = "OUTCOME_UNKNOWN"
	reasonNotOwner       = "NOT_OWNER"
	reasonOverloaded     = "SHARD_OVERLOADED"
	reasonTransferring   = "TRANSFERRING"
	reasonDiskFull       = "DISK_FULL"
)

// fail builds a Failure.
func fail(code codes.Code, reason, field, rule, message string) *lockv1.Failure {
	return &lockv1.Failure{Code: int32(code), Message: message,
		Detail: &lockv1.ErrorDetail{Reason: reason, Field: field, Rule: rule}}
}

// invalid is the refusal of one field.
func invalid(field, rule string) *lockv1.Failure {
	return fail(codes.InvalidArgument, ReasonInvalid, field, rule, field+" "+rule)
}

func limitReached(name string, value int) *lockv1.Failure {
	f := fail(codes.ResourceExhausted, ReasonLimit, "", fmt.Sprintf("at most %d", value),
		fmt.Sprintf("this gateway's limit %s of %d is reached; retry later or at another gateway", name, value))
	f.Detail.LimitName, f.Detail.LimitValue, f.Detail.RetryAfterMs = name, uint64(value), 250
	return f
}

func sessionEnded() *lockv1.Failure {
	return fail(codes.FailedPrecondition, ReasonSessionEnded, "session_id", "must be live",
		"the session has ended where it held or waited (expired, closed or revoked); what it held there is free")
}

func superseded() *lockv1.Failure {
	return fail(codes.Aborted, ReasonSuperseded, "attachment", "must be the session's newest",
		"the session was resumed by a newer stream; this one is over")
}

// reason returns the word of a failure, or "".
func reason(f *lockv1.Failure) string { return f.GetDetail().GetReason() }

// isRegistrationGone: the shard says that the registration is not live.
func isRegistrationGone(f *lockv1.Failure) bool {
	switch reason(f) {
	case "NO_REGISTRATION", "REGISTRATION_ENDED", ReasonSessionEnded:
		return true
	}
	return false
}

// isOldAttachment: a newer stream of the session is in force.
func isOldAttachment(f *lockv1.Failure) bool {
	switch reason(f) {
	case "OLD_ATTACHMENT", ReasonSuperseded:
		return true
	}
	return false
}

// isNotAdmitted: the node refused before it looked whether the request is a
// repetition. For one that was sent before, that says nothing about the first.
func isNotAdmitted(f *lockv1.Failure) bool {
	switch reason(f) {
	case reasonOverloaded, reasonDiskFull:
		return true
	}
	return false
}

// isRetryable: asking the same again makes sense, here or elsewhere.
func isRetryable(f *lockv1.Failure) bool {
	return codes.Code(f.GetCode()) == codes.Unavailable
}
