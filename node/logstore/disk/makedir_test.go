package disk

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A power loss right after the identity was stored finds it again, however deep
// the data directory lies and whichever of its parents were new.
func TestNewDirectoriesSurvive(t *testing.T) {
	for _, made := range []string{"", "a", "a/b", "a/b/c"} {
		fs := vfs.NewCrashableMem()
		if made != "" {
			if err := makeDir(fs, made); err != nil {
				t.Fatal(err)
			}
		}
		o := testOptions(fs, newAcks())
		o.Dir = "a/b/c"
		s, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.PutIdentity(Identity{ClusterID: "c", NodeID: 1}); err != nil {
			t.Fatal(err)
		}
		crashed := fs.CrashClone(vfs.CrashCloneCfg{})
		mustClose(t, s)
		o = testOptions(crashed, newAcks())
		o.Dir = "a/b/c"
		if s, err = Open(o); err != nil {
			t.Fatalf("made before: %q: %v", made, err)
		}
		if id, ok := s.Identity(); !ok || id.NodeID != 1 {
			t.Errorf("made before: %q: the identity is gone", made)
		}
		mustClose(t, s)
	}
}
