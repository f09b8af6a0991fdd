package grad

// tables lists the parts of the rule table; each is one literal in its file.
func tables() [][]Rule {
	return [][]Rule{
		elementwiseRules, activationRules, productRules, shapeRules, gatherRules,
		reduceRules, softmaxRules, lossRules, layerNormRules, zeroRules,
		convRules, poolRules, normRules, recurrentRules, attentionRules, imageRules, regionRules, signalRules, quantizedRules, tailRules, contribRules, fusedRules,
	}
}

var byOperator map[ruleKey][]*Rule

// The index is filled here because rules reach the lookup through the engine:
// a plain initializer would be a cycle.
func init() { byOperator = index(tables()...) }
