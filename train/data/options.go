package data

import "github.com/onnx-remat/remat/runtime"

// GPT2 names GPT-2's own vocabulary among tokenizers.
const GPT2 = "gpt2"

// Options say which data a run has. Exactly one of Text, Tokens and NPZ is given.
type Options struct {
	// Text are files of UTF-8 text. Between two of them stands the tokenizer's
	// end-of-text token, where it has one.
	Text []string
	// Tokenizer is GPT2, also where it is empty, or the path of a Hugging Face
	// tokenizer.json.
	Tokenizer string
	// Tokens is an .npy file of integers, 1-D (a stream) or 2-D (a row is a sample),
	// or any other file as raw little-endian tokens.
	Tokens string
	// TokenType is "uint16" or "uint32", the type of raw tokens. Empty: uint16 for a
	// vocabulary of at most 65,536, else uint32.
	TokenType string
	// NPZ is an .npz file with an array for each input.
	NPZ string

	// Val is validation data: a file of the kind that the training data is, or a
	// share of the training data taken from its end, as 0.05 or 5%. Empty: none.
	Val string

	// Shuffle gives each epoch a random order of its own, by Seed.
	Shuffle bool
	Seed    uint64

	// Labels overrides what the graph says of its labels: LabelsSame or LabelsNext.
	Labels string
	// Fill says what inputs get that are neither tokens nor labels, or overrides
	// what they are taken for, by name: tokens, labels, ones, zeros or positions.
	Fill map[string]string

	// Evaluate makes all of the data validation data, and Val must be empty.
	Evaluate bool

	// Folder is where tokenized text is kept, so that a resumed run need not
	// tokenize it again. Empty: a temporary file, which nothing is left of.
	Folder string
	// Progress, if set, hears how many of how many bytes of text are tokenized.
	Progress func(done, total int64)
}

// fillWords are the values of Options.Fill.
var fillWords = []string{fillTokens, fillLabels, fillOnes, fillZeros, fillPositions}

const (
	fillTokens    = "tokens"
	fillLabels    = "labels"
	fillOnes      = "ones"
	fillZeros     = "zeros"
	fillPositions = "positions"
)

// What labels are, beside the tokens of the same sample.
const (
	// LabelsSame: labels are the tokens, and the model compares its prediction at
	// position i with the label at i+1, as transformers do.
	LabelsSame = "same"
	// LabelsNext: the label at i is token i+1, as nanoGPT has it.
	LabelsNext = "next"
)

// Sizes are numbers for a model's free dimensions.
type Sizes struct {
	// Dims by symbol, as --dim gives them.
	Dims map[string]int64
	// Batch is the number of samples in a batch; 0: as the model or Dims say.
	Batch int64
	// Roles of the model's inputs and outputs where the caller knows more than the
	// model's metadata and names say; else nil.
	Roles *runtime.Roles
}

// Data is what a model is fed with.
type Data struct {
	// Train is nil where Options.Evaluate is set.
	Train *Batches
	// Val is one pass over the validation data in their order, nil where there are
	// none.
	Val *Batches
	// Mapping says which input gets what.
	Mapping Mapping
	// Dims are the numbers of the free dimensions of the model's inputs: the given
	// ones, and what Sizes.Batch and the data's shapes add.
	Dims map[string]int64
	// Notes are lines that a person wants to read: how inputs are fed, what is left
	// over, what was replaced.
	Notes []string
}

// Mapping says what the inputs of a model get. Of an .npz file, whose keys say what
// goes where, only the labels are looked for, so that those that count are counted.
type Mapping struct {
	// Tokens and Labels are the inputs that token ids and labels go to, "" if none.
	Tokens, Labels string
	// Kind is LabelsSame or LabelsNext.
	Kind string
	// Why says what decided Kind: a line.
	Why string
	// Fill are the other inputs: ones, zeros or positions.
	Fill map[string]string
	// Batch and Length are samples in a batch and tokens in a sample.
	Batch, Length int64
	// Vocabulary is the number of ids that the model knows, 0 if unknown.
	Vocabulary int64
	// Ignored is the label that the loss leaves out, and Ignores whether there is one.
	Ignored int64
	Ignores bool
}
