package shard

// Command is one command of a batch. Which fields count depends on Kind; the
// others are zero.
type Command struct {
	Kind         Kind
	Registration Registration
	// Attachment of the stream it came by; 0 for unary calls and for the
	// leader's own commands.
	Attachment uint64
	// DoneBelow lets the registration forget outcomes below it.
	DoneBelow uint64
	Acquire   AcquireID
	Name      string

	// Acquire.
	Mode      Mode
	Permits   uint32
	Limit     uint32
	Wait      int64 // ns of leader time; 0: do not queue
	LockDelay int64 // ns of leader time

	// Release, ForceRelease (0: every hold), Wake (the ended token).
	Token Token

	// Register.
	Session SessionID
	Client  string
	TTL     int64 // ns

	// Expire: the epoch it was decided at and the term of the deciding leader.
	// An entry of another term has no effect.
	Epoch uint64
	Term  uint64

	// Close: why. ForceRelease: by whom and why, for the audit log.
	Reason Reason
	By     string
	Why    string

	// Handover.
	Handover []Remaining
}

// Remaining is what was left of a registration's deadline when a planned
// leader transfer began.
type Remaining struct {
	Registration Registration
	Epoch        uint64
	Left         int64 // ns
}

// Batch is the content of one log entry.
type Batch struct {
	// Time is the leader's time when it proposed the entry; Apply never lets
	// time fall.
	Time LeaderTime
	// WallMS is the proposing leader's wall clock, for people only.
	WallMS   int64
	Commands []Command
}

// Result answers one command of a batch, in the same order.
type Result struct {
	Status Status
	// Register: the registration and the attachment in force.
	Registration Registration
	Attachment   uint64
	Epoch        uint64
	// Acquire: its present truth. Position counts the waiters in front.
	State    AcquireState
	Token    Token
	Reason   Reason // of AcquireEnded
	Position int
	// Refusals that name the present holders (at most MaxHoldersShown).
	Holders []HolderView
	// Mode and limit in force, for ModeConflict and LimitDisagrees.
	Mode  Mode
	Limit uint32
	// StatusLimit: which limit, and its value.
	LimitName  string
	LimitValue uint64
	// Close, Expire, ForceRelease: holds that ended.
	Ended int
	// ForceRelease: the holds that ended (at most MaxHoldersShown).
	EndedHolds []HolderView
}

// EventKind is the kind of an event.
type EventKind uint8

// Kinds of events: what a command did to others than its own sender.
const (
	// EventGranted: a waiting acquire now holds its lock.
	EventGranted EventKind = 1
	// EventEnded: a waiting acquire came to nothing.
	EventEnded EventKind = 2
	// EventLost: a hold ended otherwise than by the session's own act.
	EventLost EventKind = 3
	// EventRegistered: a registration began.
	EventRegistered EventKind = 4
	// EventRegistrationEnded: a registration ended with all it had. No
	// EventLost is emitted for its holds; EventEnded is emitted for its waits.
	EventRegistrationEnded EventKind = 5
	// EventHandover: a Handover command was applied.
	EventHandover EventKind = 6
)

// Event is news for a session or for the host.
type Event struct {
	Kind         EventKind
	Session      SessionID
	Registration Registration
	Epoch        uint64
	Acquire      AcquireID
	Name         string
	Token        Token
	Reason       Reason
	TTL          int64 // EventRegistered
	Holders      []HolderView
	Handover     []Remaining
}

// Outcome is what applying one entry did. The caller may reuse it: Apply
// truncates both slices first.
type Outcome struct {
	Results []Result
	Events  []Event
}

// MaxHoldersShown bounds the holders named in one answer.
const MaxHoldersShown = 16

// HolderView is one hold as others see it.
type HolderView struct {
	Client    string
	Token     Token
	Mode      Mode
	Permits   uint32
	HeldFor   int64 // ns of leader time
	GrantedMS int64 // wall clock of the granting leader
}

// WaiterView is one queued acquire as others see it.
type WaiterView struct {
	Client  string
	Mode    Mode
	Permits uint32
	Waiting int64 // ns of leader time
}

// LockView is one name as others see it.
type LockView struct {
	Name    string
	Mode    Mode // 0 when free
	Limit   uint32
	Holders []HolderView // in order of grant
	Waiters int
	Queue   []WaiterView // first MaxQueueShown in order
	Delayed int64        // ns of lock-delay left
}

// MaxQueueShown bounds the waiters named in one answer.
const MaxQueueShown = 100

// EpochEvent is one numbered change of a registration's holds that was not the
// session's own act.
type EpochEvent struct {
	Epoch   uint64
	Name    string
	Token   Token
	Acquire AcquireID
	Reason  Reason
}

// InventoryHold and InventoryWait list what a registration has.
type InventoryHold struct {
	Acquire AcquireID
	Name    string
	Token   Token
}

// InventoryWait is one wait of a registration.
type InventoryWait struct {
	Acquire AcquireID
	Name    string
}

// RegistrationView is one registration as the host sees it.
type RegistrationView struct {
	Session      SessionID
	Client       string
	TTL          int64
	Registration Registration
	Epoch        uint64
	Attachment   uint64
	Holds        int
	Waits        int
}
