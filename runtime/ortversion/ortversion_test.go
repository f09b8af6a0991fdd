package ortversion

import "testing"

func TestOlder(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"1.9.0", "1.24.1", true},
		{"1.24.1", "1.24.1", false},
		{"1.31.1", "1.24.1", false},
		{"1.32.0", "1.32.1", true},
		{"1.32", "1.32.1", true},
		{"2.0.0", "1.32.1", false},
		{"1.33.0-dev", "1.32.0", false},
	} {
		if got := Older(c.a, c.b); got != c.want {
			t.Errorf("%s is older than %s: %t", c.a, c.b, got)
		}
	}
	for _, v := range []string{Oldest, Newest} {
		if v != Current && Older(v, Current) == Older(Current, v) {
			t.Errorf("%s and %s", v, Current)
		}
	}
	if Older(Current, Oldest) || Older(Newest, Current) {
		t.Errorf("%s is not between %s and %s", Current, Oldest, Newest)
	}
}
