package main

// Ranks in advise: what each takes, what is sent, and how much of the time is left for
// computing, on paper, by
//
//	seconds to agree = bytes that a rank sends / bytes per second of its link
//	efficiency       = H·step / (H·step + seconds to agree)
//
// where ranks agree every H steps and nothing is sent while they compute. A rank sends
// and receives at once, so the link is full duplex. A pipeline of K stages computes in
// M of M + K - 1 ticks, each a K'th of a micro-batch's step:
//
//	efficiency       = M·step/K / ((M + K - 1)·step/K + seconds to send)

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/rewrite/stage"
)

func adviseRankFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Name: "ranks", Usage: "say what each of `N` ranks takes that train together, with --batch of its own, and what it sends"},
		&cli.StringFlag{Name: "link", Usage: "with --ranks: a rank's link, `RATE`, such as 10Gbit/s or 1GB/s"},
		&cli.Float64Flag{Name: "step-seconds", Usage: "with --link: `X`, how long a rank's step takes, as remat run measures it"},
	}
}

// adviceLocal is how many steps there are between two averages in what is shown.
const adviceLocal = 16

// A rankAdvice is what was asked of ranks.
type rankAdvice struct {
	size int
	// link is in bytes per second, step in seconds; 0 where they were not given.
	link, step float64
}

// readRankAdvice reads the flags of adviseRankFlags.
func readRankAdvice(c *cli.Context) (r rankAdvice, err error) {
	r.size, r.step = c.Int("ranks"), c.Float64("step-seconds")
	if c.IsSet("ranks") && (r.size < 2 || r.size > mostRanks) {
		return r, fmt.Errorf("--ranks %d: want 2 to %d", r.size, mostRanks)
	}
	if c.IsSet("link") && r.size == 0 {
		return r, errors.New("--link: requires --ranks N")
	}
	if c.IsSet("step-seconds") && !c.IsSet("link") {
		return r, errors.New("--step-seconds: requires --link RATE")
	}
	if c.IsSet("step-seconds") && !(r.step > 0 && r.step < 1e9) {
		return r, fmt.Errorf("--step-seconds %v: want seconds above 0", r.step)
	}
	if c.IsSet("link") {
		r.link, err = readLink(c.String("link"))
	}
	return r, err
}

// linkUnits are bytes per second, by what a rate ends in.
var linkUnits = []struct {
	name  string
	bytes float64
}{
	{"Gbit/s", 1e9 / 8}, {"Mbit/s", 1e6 / 8}, {"kbit/s", 1e3 / 8}, {"GB/s", 1e9}, {"MB/s", 1e6}, {"kB/s", 1e3},
	{"GiB/s", 1 << 30}, {"MiB/s", 1 << 20}, {"KiB/s", 1 << 10},
}

// readLink reads a rate as bytes per second.
func readLink(text string) (float64, error) {
	for _, u := range linkUnits {
		number, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		x, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err == nil && x > 0 && x*u.bytes < 1e18 && !math.IsInf(x, 0) {
			return x * u.bytes, nil
		}
	}
	return 0, fmt.Errorf("--link %q: want a rate, such as 10Gbit/s or 1GB/s", text)
}

// ranks asks what ranks take, nil where that was not asked.
func (a *adviceRun) ranks(taken *pipeline.Taken) ([]report.AdviceRanks, error) {
	r := a.rankAdvice
	if r.size == 0 {
		return nil, nil
	}
	o := a.options.FitOptions
	if taken != nil {
		o.Derive, o.Pipeline.Precision = taken.Options.Derive, taken.Options.Pipeline.Precision
	}
	ways := []pipeline.Ranks{{Size: r.size}, {Size: r.size, Shard: true}, {Size: r.size, Every: adviceLocal}}
	if r.size <= stage.MostStages {
		ways = append(ways, pipeline.Ranks{Size: r.size, Stages: true})
	}
	list, err := pipeline.AdviseRanks(a.e.ctx, a.e.loaded, a.source, o, ways)
	if err != nil {
		return nil, err
	}
	var out []report.AdviceRanks
	for _, l := range list {
		out = append(out, r.document(l))
		if l.Fits && l.Micro == 0 {
			t := &pipeline.Taken{Fitted: l.Fitted, Options: o}
			d := &out[len(out)-1]
			d.Train = report.Text(fmt.Sprintf("mpirun -n %d %s --sync %s%s --steps N", r.size, a.train(t), d.Sync, a.data()))
		}
	}
	return out, nil
}

// document describes what a rank takes.
func (r rankAdvice) document(l pipeline.RanksAdvice) report.AdviceRanks {
	d := report.AdviceRanks{Ranks: r.size, Sync: "step", Every: max(1, l.Every), Remark: report.Text(l.Remark)}
	switch {
	case l.Every > 0:
		d.Sync = fmt.Sprintf("local=%d", l.Every)
	case l.Shard:
		d.Sync = syncShard
	case l.Stages:
		d.Sync = syncPipeline
	}
	if l.Fitted == nil {
		return d
	}
	d.Total, d.Fits, d.Overhead, d.SyncBytes = &l.Bytes, l.Fits, new(report.Float(l.Overhead)), &l.Sync
	if l.Stages {
		r.pipeline(l, &d)
		return d
	}
	if r.link > 0 {
		seconds := float64(l.Sync) / r.link
		d.SyncSeconds = new(report.Float(seconds))
		if r.step > 0 {
			computing := float64(d.Every) * r.step
			d.Efficiency = new(report.Float(computing / (computing + seconds)))
		}
	}
	return d
}

// syncPipeline stands for a pipeline where others have how they agree.
const syncPipeline = "pipeline"

// pipeline adds what a pipeline takes of time. Without a link and a step's time its
// efficiency is that of the schedule alone.
func (r rankAdvice) pipeline(l pipeline.RanksAdvice, d *report.AdviceRanks) {
	m, k := float64(l.Micro), float64(r.size)
	computing, seconds := m/k, 0.0
	if r.link > 0 {
		seconds = float64(l.Sync) / r.link
		d.SyncSeconds = new(report.Float(seconds))
	}
	tick := 1 / k
	if r.step > 0 {
		tick, computing = r.step/k, m*r.step/k
	}
	if r.link == 0 || r.step > 0 {
		d.Efficiency = new(report.Float(computing / ((m+k-1)*tick + seconds)))
	}
	d.Remark = report.Text(fmt.Sprintf("--pipeline %d --accumulate %d: that many micro-batches of --batch a step", r.size, l.Micro))
}
