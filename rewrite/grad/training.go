package grad

// What a model in train() does otherwise: its normalizations and, at the end, its attention.
// PyTorch's dynamo exporter writes normalizations with stored statistics, but the node still
// says how the exported program calls it, and the sixth argument is whether it normalizes by
// its batch:
//
//	BatchNormalization … call_function[target=torch.ops.aten._native_batch_norm_legit_functional.default]
//	                     (args = (%x, %p_weight, %p_bias, %b_running_mean, %b_running_var, True, 0.1, 1e-05), …)

import (
	"regexp"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// torchNorm is a call of a batch or an instance normalization, with what it says of training:
// nothing where its operator never trains.
var torchNorm = regexp.MustCompile(`target=torch\.ops\.aten\.\w*(?:batch|instance)_norm\w*\.\w+\]\(args = \([^,]*,[^,]*,[^,]*,[^,]*,[^,]*, (True|False)?`)

// calledInTraining reports a node of a batch normalization that the exported program calls
// with training=True, and whether the node says which it is.
func calledInTraining(n *onnx.Node) (training, said bool) {
	found := torchNorm.FindStringSubmatch(n.TorchCall())
	return found != nil && found[1] == "True", found != nil
}

// NormalizesByBatch reports a BatchNormalization that a training graph has normalize by the
// statistics of its batch: it says so, or the exported program does.
func NormalizesByBatch(n *onnx.Node) bool {
	if traits.ComputesStatistics(n) {
		return true
	}
	training, _ := calledInTraining(n)
	return training && n.Is("BatchNormalization")
}

// trainNorms has the normalizations of a model in train() normalize by their batch, and
// returns how many the file has otherwise.
func trainNorms(m *onnx.Model) (changed int) {
	if m.Opset("") < 14 {
		return 0 // the exporter never wrote these
	}
	for _, n := range m.Graph.Nodes {
		if traits.ComputesStatistics(n) || !NormalizesByBatch(n) {
			continue
		}
		n.SetAttr(onnx.IntAttr("training_mode", 1))
		for i, name := range []string{"mean", "variance"} {
			n.AddOutput(1+i, m.Graph.FreshValueName(n.Label()+"/"+name))
		}
		changed++
	}
	return changed
}

// droppedCall is a call of attention, with the share that it drops, which a model in eval()
// has as 0. Either exporter writes it as a Dropout that does not train.
var droppedCall = regexp.MustCompile(`target=torch\.ops\.aten\.scaled_dot_product_attention\.default\]\(args = \([^,]+, [^,]+, [^,]+, [^,]+, ([^,)]+)`)

// trainDropouts has attention of a model in train() drop what the exported program does, and
// returns how many calls do again, and how many have lost their Dropout to the exporter's
// optimizer.
func trainDropouts(m *onnx.Model) (changed, lost int) {
	again := map[string]bool{}
	for _, n := range m.Graph.Nodes {
		if !(sharedBy(droppedCall, n) > 0) {
			continue
		}
		drops := n.Is("Dropout")
		if drops && n.In(2) == nil && m.Opset("") >= 12 {
			n.SetInput(2, m.Graph.AddConstant(n.Label()+"/training_mode", onnx.NewTensor(onnx.Bool, nil, []byte{1})))
		}
		again[n.TorchCall()] = again[n.TorchCall()] || drops
	}
	for _, drops := range again {
		if drops {
			changed++
		} else {
			lost++
		}
	}
	return changed, lost
}
