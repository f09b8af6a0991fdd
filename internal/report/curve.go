package report

// A curve over the steps of a run, thinned out as it grows. Steps fall into
// buckets of equal width, which is 1 at first and doubles, neighbours merged, when
// there are more than mostBuckets; so a run of any length takes the same room, and
// nothing is dropped: a bucket has the smallest, the mean and the largest.

import (
	"cmp"
	"math"
)

// mostBuckets of a curve: more than the pixels of a chart tell apart.
const mostBuckets = 600

// A Curve is a quantity over steps. The zero Curve is empty.
type Curve struct {
	width   int64
	buckets []bucket
	// Points is how many were added.
	Points int64
	start  float64
}

// A bucket holds the points of steps (index·width, (index+1)·width].
type bucket struct {
	index          int64
	first, last    int64 // steps
	count          int64
	least, sum, up float64
	end            float64 // the latest value
}

// Add adds the value at a step, counted from 1; what is not finite, and a step
// before the last one, is left out.
func (c *Curve) Add(step int64, x float64) {
	if math.IsNaN(x) || math.IsInf(x, 0) || step < 1 {
		return
	}
	c.width = cmp.Or(c.width, 1)
	if n := len(c.buckets); n > 0 && step < c.buckets[n-1].last {
		return
	}
	if c.Points++; c.Points == 1 {
		c.start = x
	}
	c.push(bucket{index: (step - 1) / c.width, first: step, last: step, count: 1, least: x, sum: x, up: x, end: x})
	for len(c.buckets) > mostBuckets {
		c.width *= 2
		all := c.buckets
		c.buckets = c.buckets[:0]
		for _, b := range all {
			b.index /= 2
			c.push(b)
		}
	}
}

// addBytes adds a size; none is one that was not measured.
func (c *Curve) addBytes(step, n int64) {
	if n > 0 {
		c.Add(step, float64(n))
	}
}

// push appends a bucket, or merges it with the last one of the same index.
func (c *Curve) push(b bucket) {
	n := len(c.buckets)
	if n == 0 || c.buckets[n-1].index != b.index {
		c.buckets = append(c.buckets, b)
		return
	}
	last := &c.buckets[n-1]
	last.last, last.end = b.last, b.end
	last.count, last.sum = last.count+b.count, last.sum+b.sum
	last.least, last.up = min(last.least, b.least), max(last.up, b.up)
}

// Thinned reports that points share buckets.
func (c *Curve) Thinned() bool { return c.Points > int64(len(c.buckets)) }

// First is the first value; NaN of an empty curve.
func (c *Curve) First() float64 {
	if c.Points == 0 {
		return math.NaN()
	}
	return c.start
}

// Last is the latest value; NaN of an empty curve.
func (c *Curve) Last() float64 {
	if len(c.buckets) == 0 {
		return math.NaN()
	}
	return c.buckets[len(c.buckets)-1].end
}

// Largest is the largest value; NaN of an empty curve.
func (c *Curve) Largest() float64 { return c.most(func(b bucket) float64 { return b.up }) }

// least is the smallest value; NaN of an empty curve.
func (c *Curve) least() float64 { return -c.most(func(b bucket) float64 { return -b.least }) }

func (c *Curve) most(of func(bucket) float64) float64 {
	most := math.NaN()
	for _, b := range c.buckets {
		if x := of(b); math.IsNaN(most) || x > most {
			most = x
		}
	}
	return most
}

func (b bucket) mean() float64 { return b.sum / float64(b.count) }

// at is the step in the bucket's middle.
func (b bucket) at() float64 { return float64(b.first+b.last) / 2 }
