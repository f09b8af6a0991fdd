package traits

// elementwise lists the operators whose output element at a place depends on
// the input elements at that place alone, where inputs broadcast to the output's
// shape. So what is divided along an axis stays divided there, and the output's
// shape is that of its largest input. CastLike is none, as its second input may
// have any shape; Dropout is none, as parts of it would draw other numbers.
var elementwise = []key{
	// one input, perhaps with bounds or a bias that broadcast
	{"", "Abs"}, {"", "Acos"}, {"", "Acosh"}, {"", "Asin"}, {"", "Asinh"}, {"", "Atan"}, {"", "Atanh"},
	{"", "BitwiseNot"}, {"", "Cast"}, {"", "Ceil"}, {"", "Celu"}, {"", "Clip"}, {"", "Cos"}, {"", "Cosh"},
	{"", "Elu"}, {"", "Erf"}, {"", "Exp"}, {"", "Floor"}, {"", "Gelu"}, {"", "HardSigmoid"}, {"", "HardSwish"},
	{"", "Identity"}, {"", "IsInf"}, {"", "IsNaN"}, {"", "LeakyRelu"}, {"", "Log"}, {"", "Mish"}, {"", "Neg"},
	{"", "Not"}, {"", "Reciprocal"}, {"", "Relu"}, {"", "Round"}, {"", "Selu"}, {"", "Shrink"}, {"", "Sigmoid"},
	{"", "Sign"}, {"", "Sin"}, {"", "Sinh"}, {"", "Softplus"}, {"", "Softsign"}, {"", "Sqrt"}, {"", "Swish"},
	{"", "Tan"}, {"", "Tanh"}, {"", "ThresholdedRelu"},
	{"com.microsoft", "BiasGelu"}, {"com.microsoft", "FastGelu"}, {"com.microsoft", "Gelu"}, {"com.microsoft", "QuickGelu"},
	// several inputs
	{"", "Add"}, {"", "And"}, {"", "BitShift"}, {"", "BitwiseAnd"}, {"", "BitwiseOr"}, {"", "BitwiseXor"},
	{"", "Div"}, {"", "Equal"}, {"", "Greater"}, {"", "GreaterOrEqual"}, {"", "Less"}, {"", "LessOrEqual"},
	{"", "Max"}, {"", "Mean"}, {"", "Min"}, {"", "Mod"}, {"", "Mul"}, {"", "Or"}, {"", "Pow"}, {"", "PRelu"},
	{"", "Sub"}, {"", "Sum"}, {"", "Where"}, {"", "Xor"},
}
