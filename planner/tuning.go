package planner

// The numbers that bound the planner's searches, and the stages of the planner
// that can be left out.
//
// All shares are fractions: of the peak, of the plain step's work, of the bytes
// of all forward values.

// trifle is what a node may add in bytes and still counts as raising nothing when an
// order is made: the sizes that control dependencies compute.
const trifle = 64

// A tuning is one setting of the planner. Production code runs the standard one
// alone; the benchmark in stages_test.go leaves out a stage or changes a number
// and prints what that costs.
type tuning struct {
	// off are the stages that are left out.
	off stage

	// What may not be dropped (index.go).

	// smallBytes is the largest size that can be kept without a question: a
	// recomputation costs more nodes than such a value costs memory. In a small
	// problem the limit is smallOne of all forward values, and what is kept so
	// must be small together, smallAll of them: the values of one step of an
	// unrolled recurrence are small, those of all steps are not.
	smallBytes         int64
	smallOne, smallAll float64
	// movedWork is the work that a byte moved counts for, in FLOPs: of two equal
	// plans the one that moves less is taken.
	movedWork float64

	// The plain order (order.go, deferral.go, inversion.go).

	// edgeGain is the least share that control edges must take off what an order is
	// worth, since they are nodes more; edgeTries bounds the orders tried with
	// more control edges, and with fewer. A try is two simulations of the step.
	edgeGain  float64
	edgeTries int
	// leanTries is edgeTries for an order of the search's own.
	leanTries int
	// leanGain is the least share that an order of its own must take off what the
	// search begins with.
	leanGain float64
	// deferralOps is the most operators of a stretch that runs late, deferralWait
	// the least number of places that it does, deferrals how many stretches are
	// kept, the costliest first.
	deferralOps, deferralWait, deferrals int
	// largeShare of the peak makes a gain, or a buffer, large.
	largeShare float64
	// A maker waits for at most inversionEdges operators, out of those that the
	// wanted order runs at most inversionWindow places before it: a control edge on
	// what ran long ago would change nothing.
	inversionWindow, inversionEdges int

	// Kinds (kinds.go): how far a neighbourhood reaches, for values and for
	// operators. The first and the last layer differ from the others where they
	// touch the rest of the graph; the visiting order wants them alike, so it
	// looks less far.
	valueRounds, opRounds int

	// The search (optimal.go, search.go).

	// searchOps bounds the operators simulated in one search, minVisits and
	// maxVisits the keep sets visited, each of which simulates every operator
	// once or more.
	searchOps, minVisits, maxVisits int
	// seedSpacing is the most layers between the boundaries of a seed, polishSpacing
	// of one that is polished.
	seedSpacing, polishSpacing int
	// sweepSteps is the number of prices, each √2 times the one before, in FLOPs
	// for a byte, from sweepFrom on.
	sweepSteps int
	sweepFrom  float64
	// maxSingles is the number of droppable values up to which they are flipped
	// one by one: beyond, the visits would not reach all of them from a single
	// point.
	maxSingles int
	// kindsReserve and singlesReserve are the shares of the visits left that moves
	// by kind, and single ones, leave to what follows.
	kindsReserve, singlesReserve float64
	// pathSteps is the number of sets visited on a path, and pathShare what paths may visit more than what is
	// left, as a share of the visits of the search.
	pathSteps int
	pathShare float64
	// exhaustiveStash is the number of droppable values up to which all sets are
	// visited, in a graph so small that it takes no more than searchOps.
	exhaustiveStash int
	// narrowOps is the most operators of a graph that is searched once more with what backward
	// views kept, whatever is asked for.
	narrowOps int
	// nearLeast: without a budget, of the plans whose peak lies above the least by
	// at most this share the one is taken that costs least, where all the plain step's work
	// done again costs leastWork of the peak.
	nearLeast, leastWork float64
	// leastTries is the number of plans, those that hold least by the search's count, that the
	// judge chooses from; leastOps bounds the operators of all of them together.
	leastTries, leastOps int
	// beyondShare of a peak is more than counting barriers or legalizing changes.
	beyondShare float64
	// reachFactor times what moves take off a few plans spread over the frontier is more than
	// they take off any, and so is reachMost of the peak. reachOps bounds the operators of
	// these plans together, which are at most reachTries; where they would be fewer than
	// reachLeast, in a large graph, none is moved for a budget.
	reachOps, reachTries, reachLeast int
	reachFactor, reachMost           float64

	// Segments (segments.go, selective.go).

	// polishWork is the most work, as a share of the plain step's, that one value
	// may cost in polish to lower the peak; polishGain the share that keeping or
	// dropping against the segments must take off it; polishTries bounds the sets
	// tried.
	polishWork, polishGain float64
	polishTries            int
	// selectiveSteps is the number of prices that selective tries, each twice the
	// one before, from a FLOP for a byte on.
	selectiveSteps int
	// selectiveWork is the most work that selective repeats, as a share of the
	// plain step's.
	selectiveWork float64

	// Legalizing (legalize.go): the rounds over all early nodes, the halves tried in a
	// round, and the early nodes tried alone: the last ones, and some of those at the peak. A try is
	// one simulation of the written graph.
	legalizeRounds, legalizeHalves, legalizeSingles, legalizeAtPeak int

	// Moves (moves.go, shifts.go).

	// moveNodes, and moveSteps of its own, bound the nodes simulated for one plan. At a peak, moveTries moves and
	// all runs of up to moveRun nodes are tried within moveReach places of it, and the
	// moveChecks best of them as a whole; and moveFar moves that go farther.
	moveNodes, moveSteps, moveTries, moveRun, moveReach, moveChecks, moveFar int
	// moveSet is the most nodes that have to move together, moveGrowth how many more go
	// along.
	moveSet, moveGrowth int
	// moveShare of the peak makes a buffer worth a move; what is held above the peak
	// less moveNear of it counts where the peak stays, for moveStalls moves on end.
	moveShare, moveNear float64
	moveStalls          int
	// Of the orders that a plan without recomputation may begin with, those that hold at
	// most startShare more than the best are legalized, and starts of them moved.
	startShare float64
	starts     int
	// orderShare of a peak is more than a better order alone takes off it.
	orderShare float64
	// moveEdges bounds the control edges more on the way.
	moveEdges int

	// Barriers (program.go): how far back, in places of the schedule, a trigger of
	// the input's own shape is looked for: an older one would let the clone run
	// long before it is wanted.
	recent int
}

// A stage is a part of the planner that the benchmark leaves out.
type stage uint

const (
	stageGreedy     stage = 1 << iota // orders: the greedy candidate
	stageDeep                         // orders: greedy, branch by branch
	stageDeepLast                     // orders: the same, the last of equals first
	stageSunk                         // orders: backward operators on forward values run late
	stageInversions                   // orders: control edges against what runs early
	stageDeferrals                    // orders: control edges against what runs late
	stageFlips                        // orders: producers visited the other way round
	stagePrune                        // orders: control edges that do not help are left out
	stageLean                         // orders: peaks with shapes erased count too
	stageSeeds                        // search: boundaries of layers
	stageSeedPolish                   // search: some of them polished
	stageSweepPeak                    // search: minimum cuts, memory priced at the peak
	stageSweepEven                    // search: minimum cuts, memory priced evenly
	stageKinds                        // search: flips by kind
	stageSingles                      // search: flips of single values
	stagePaths                        // search: sets between neighbours
	stageErase                        // search: shapes erased
	stageOrders                       // search: several orders
	stageBrief                        // search: what is computed again held briefly
	stagePolish                       // segments: values of the first and last segment
	stageLegalize                     // early nodes wait where they may
	stageMoves                        // nodes move past the peak
	stageReroll                       // micro-batches alike are searched once
)

// standard is the setting that production code runs. What each number is worth,
// by halving and by doubling it (scripts/planner.py --numbers): the most that it
// costs in any of the graphs measured, of the peak at equal work unless said
// otherwise. The rows are of two runs, of an earlier state of the planner on 21
// graphs and of a later one on 8; numbers that are not listed showed less than 0.1 %
// there, or were not varied (beyondShare, exhaustiveStash).
//
//	                  halved                      doubled
//	smallBytes        12.6 % of the least peak    0
//	edgeTries         5.2 % of full               0
//	leanTries         3.2 %                       0
//	deferralWait      0                           3.2 %
//	largeShare        0.4 %                       2.8 %
//	inversionEdges    2.0 %, 3.7 % of full        0
//	valueRounds       0.9 %                       3.0 %
//	searchOps         2.2 %                       0, and a fifth more time
//	minVisits         1.3 %                       0, and a sixth more time
//	maxVisits         1.0 points of work          0
//	polishSpacing     14.9 % of the least peak    not measured
//	sweepSteps        4.2 %                       not measured
//	kindsReserve      0.4 %                       1.8 %
//	singlesReserve    0.4 %                       3.0 points of work
//	pathSteps         0.4 %                       0.3 %
//	polishTries       46 % of full                0.3 %
//	legalizeRounds    31 control edges in a file  0
var standard = tuning{
	smallBytes: 4096, smallOne: 0.001, smallAll: 0.02, movedWork: 1. / 64,
	edgeGain: 0.001, edgeTries: 12, leanTries: 6, leanGain: 0.002, deferralOps: 64, deferralWait: 5, deferrals: 256, largeShare: 0.0025,
	inversionWindow: 80, inversionEdges: 3,
	valueRounds: 4, opRounds: 2,
	searchOps: 2_000_000, minVisits: 400, maxVisits: 4000, seedSpacing: 16, polishSpacing: 2,
	sweepSteps: 40, sweepFrom: 1. / 16, maxSingles: 400, kindsReserve: 1. / 3, singlesReserve: 0.5, pathSteps: 16, pathShare: 0.5,
	exhaustiveStash: 12, narrowOps: 1500, nearLeast: 0.01, leastWork: 0.1, leastTries: 12, leastOps: 40_000, beyondShare: 1. / 64,
	reachOps: 15_000, reachTries: 8, reachLeast: 3, reachFactor: 1.5, reachMost: 0.15,
	polishWork: 0.002, polishGain: 0.002, polishTries: 48, selectiveSteps: 10, selectiveWork: 0.05,
	legalizeRounds: 3, legalizeHalves: 48, legalizeSingles: 32, legalizeAtPeak: 8,
	moveNodes: 80_000, moveSteps: 30, moveTries: 24, moveRun: 12, moveReach: 40, moveChecks: 2, moveFar: 6, moveSet: 64, moveGrowth: 8,
	moveShare: 1. / 1024, moveNear: 1. / 64, moveStalls: 4, moveEdges: 24, startShare: 0, starts: 2, orderShare: 1. / 3,
	recent: 40,
}

// runs reports that a stage is not left out.
func (t *tuning) runs(s stage) bool { return t.off&s == 0 }

// tuning is the setting that p is planned with.
func (p *Problem) tuning() *tuning {
	if p.tuned != nil {
		return p.tuned
	}
	return &standard
}

// part is a share of a number of bytes.
func part(share float64, bytes int64) int64 { return int64(share * float64(bytes)) }
