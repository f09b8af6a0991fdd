package grad

// Kernels exist for float32 alone, and a place on a pixel is a kink: the
// tolerance is that of float32, the places are given.
var imageCases = []gradCase{
	{row: "DeformConv", name: "plain", body: "in x F[1,2,4,5]\nin w F[3,2,2,2]\nin o F[1,8,3,4]\ny = DeformConv(x, w, o)", f32: true, lo: 0.1, hi: 0.4},
	{row: "DeformConv", name: "groups, mask and bias", body: "in x F[2,4,4,4]\nin w F[2,2,2,3]\nin o F[2,24,2,2]\nin b F[2]\nin m F[2,12,2,2]\ny = DeformConv(x, w, o, b, m) {group=2, offset_group=2, pads=[1, 1, 1, 1], strides=[2, 2], dilations=[2, 1]}", f32: true, lo: 0.1, hi: 0.4},
	{row: "GridSample", name: "linear", body: gridBody("x") + "y = GridSample(x, g)", f32: true},
	{row: "GridSample", name: "linear, of the grid", body: gridBody("u") + "y = GridSample(x, g)", f32: true, lo: -0.05, hi: 0.05},
	{row: "GridSample", name: "border", body: gridBody("corners") + "y = GridSample(x, g) {padding_mode=\"border\", align_corners=1}", f32: true, lo: -0.05, hi: 0.05},
	{row: "GridSample", name: "reflection", body: gridBody("u") + "y = GridSample(x, g) {padding_mode=\"reflection\"}", f32: true, lo: -0.05, hi: 0.05},
	{row: "GridSample", name: "nearest", body: gridBody("x") + "y = GridSample(x, g) {mode=\"nearest\", padding_mode=\"reflection\", align_corners=1}", f32: true},
	{row: "GridSample", name: "nearest, between pixels", body: "in x F[1,2,3,4]\ninit g F[1,3,3,2] = [-1.5, 0.1, 1.5, 0.1, -2, -0.6, 2, 0.6, 0.5, 1.1, -0.5, -1.1, 1, 0.3, -1, -0.3, -2.5, 0.1]\ny = GridSample(x, g) {mode=\"nearest\", padding_mode=\"reflection\"}", f32: true},
	{row: "GridSample", name: "cubic", body: gridBody("u") + "y = GridSample(x, g) {mode=\"cubic\"}", f32: true, lo: -0.05, hi: 0.05},
	{row: "GridSample", name: "free", body: "in x F[batch,2,3,4]\nin g F[batch,2,2,2]\ny = GridSample(x, g) {mode=\"cubic\", padding_mode=\"border\"}", f32: true, lo: -0.04, hi: 0.04},
	{row: "GridSample", name: "places that data picks", body: "in x F[1,2,3,4]\ninit g F[3,2] = [-0.5, 0.35, 0.02, -0.35, 0.5, 0.66]\ninit k F[3] = [1, -1, 2]\ninit o F[] = 0\ninit a int64[2] = [0, 1]\nm = Greater(k, o)\nh = Compress(g, m) {axis=0}\nu = Unsqueeze(h, a)\nz = GridSample(x, u)\ny = Mul(z, z)", f32: true},
	{row: "AffineGrid", name: "centres", body: "in t F[2,2,3]\ninit s int64[4] = [2, 1, 2, 3]\ny = AffineGrid(t, s)", f32: true},
	{row: "AffineGrid", name: "corners", body: "in t F[1,3,4]\ninit s int64[5] = [1, 1, 2, 3, 2]\ny = AffineGrid(t, s) {align_corners=1}", f32: true},
	{row: "AffineGrid", name: "corners of one place", body: "in t F[1,2,3]\ninit s int64[4] = [1, 1, 1, 3]\ny = AffineGrid(t, s) {align_corners=1}", f32: true},
	{row: "Col2Im", name: "apart", body: "in x F[2,8,4]\ninit i int64[2] = [4, 4]\ninit b int64[2] = [2, 2]\ny = Col2Im(x, i, b) {strides=[2, 2]}", f32: true},
	{row: "Col2Im", name: "overlap", body: "in x F[1,6,20]\ninit i int64[2] = [4, 5]\ninit b int64[2] = [2, 3]\ny = Col2Im(x, i, b) {pads=[1, 2, 0, 0]}", f32: true},
	{row: "Col2Im", name: "dilated", body: "in x F[batch,8,2]\ninit i int64[2] = [3, 5]\ninit b int64[2] = [2, 2]\ny = Col2Im(x, i, b) {dilations=[2, 2], strides=[1, 2]}", f32: true},
	{row: "RoiAlign@16", name: "regions of two images", body: rois("2") + "y = RoiAlign(x, r, b) {output_height=2, output_width=3, sampling_ratio=2, spatial_scale=0.5}", f32: true},
	{row: "RoiAlign@10", name: "one image", body: rois("1") + "y = RoiAlign(x, r, b) {output_height=3, output_width=1, sampling_ratio=1}", f32: true, opset: 15},
	{row: "RoiAlign@16", name: "a pixel an output", body: rois("2") + "y = RoiAlign(x, r, b) {sampling_ratio=3}", f32: true},
	{row: "MaxUnpool", name: "plain", body: "in x F[1,2,2,2]\ninit i int64[1,2,2,2] = [1, 2, 8, 15, 16, 19, 24, 31]\ny = MaxUnpool(x, i) {kernel_shape=[2, 2], strides=[2, 2]}", f32: true},
}

// rois are n images and five regions: inside, over the edges, outside, smaller than a
// pixel, and upside down, which is of no extent.
func rois(n string) string {
	images := map[string]string{"1": "[0, 0, 0, 0, 0]", "2": "[0, 1, 1, 0, 1]"}[n]
	return "in x F[" + n + ",2,5,6]\ninit r F[5,4] = [1.3, 0.4, 7.2, 8.1, -3.4, 2.2, 5.1, 14.3, 17.0, 15.5, 21.0, 19.0, 4.1, 3.3, 4.6, 3.8, 5.5, 6.0, 3.0, 4.0]\ninit b int64[5] = " + images + "\n"
}

// gridBody is an image and fixed places half between the pixels, some outside;
// with u the image is fixed and the places are moved by an input.
func gridBody(input string) string {
	places := "[-0.5, 0.35, 0.02, -0.35, 0.5, 1.66, -1.5, 0.3, 1.52, -0.3, 0.01, -1.65, 0.5, -0.34, -0.02, 0.32, -0.48, -0.31, 1.5, 1.65, 0.52, 0.33, 0.0, 0.36]"
	if input == "corners" {
		places = "[-0.67, 0.5, 0.02, -0.5, 0.66, 1.6, -1.5, 0.5, 1.52, -0.5, 0.01, -1.65, 0.67, -0.49, -0.02, 0.52, -0.68, -0.51, 1.5, 1.65, 0.65, 0.48, 0.0, 0.51]"
	}
	if input == "x" {
		return "in x F[2,2,3,4]\ninit g F[2,2,3,2] = " + places + "\n"
	}
	image := "[3,1,-2,4,0.5,2,-1,3, 1,0,2,-3,4,1,-2,2, 0.3,1,2,3,-1,-2,0,1, 2,-2,1,0,3,1,2,-1, 1,2,3,4,0,1,-2,3, 2,1,-1,0,1,3,2,1]"
	return "init x F[2,2,3,4] = " + image + "\ninit p F[2,2,3,2] = " + places + "\nin u F[2,2,3,2]\ng = Add(p, u)\n"
}
