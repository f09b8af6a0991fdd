package grad

var signalCases = []gradCase{
	{row: "STFT", name: "frames that overlap", body: "in x F[2,9,1]\nin w F[4]\ninit s int64[] = 2\ninit n int64[] = 4\ny = STFT(x, s, w, n)"},
	{row: "STFT", name: "no window", body: "in x F[1,11,1]\ninit s int64[] = 4\ninit n int64[] = 3\ny = STFT(x, s, _, n) {onesided=0}"},
	{row: "STFT", name: "as long as the window", body: "in x F[1,7,1]\nin w F[5]\ninit s int64[] = 1\ny = STFT(x, s, w)", opset: 17},
	{row: "DFT", name: "reals", body: "in x F[2,5,1]\ny = DFT(x)"},
	{row: "DFT", name: "complex", body: "in x F[2,3,2]\ny = DFT(x)"},
	{row: "DFT", name: "half", body: "in x F[2,6,1]\ninit a int64[] = -2\ny = DFT(x, _, a) {onesided=1}"},
	{row: "DFT", name: "half, odd", body: "in x F[5,2,1]\ninit n int64[] = 5\ninit a int64[] = 0\ny = DFT(x, n, a) {onesided=1}"},
	{row: "DFT", name: "inverse", body: "in x F[2,3,4,2]\ninit a int64[] = 1\ny = DFT(x, _, a) {inverse=1}"},
	{row: "DFT", name: "inverse of half", body: "in x F[2,4,2]\ny = DFT(x) {inverse=1, onesided=1}"},
	{row: "DFT", name: "inverse of half, odd", body: "in x F[3,2,2]\ninit n int64[] = 5\ninit a int64[] = 0\ny = DFT(x, n, a) {inverse=1, onesided=1}"},
	{row: "DFT", name: "longer", body: "in x F[2,3,1]\ninit n int64[] = 5\ny = DFT(x, n) {onesided=1}"},
	{row: "DFT", name: "shorter", body: "in x F[2,5,2]\ninit n int64[] = 3\ny = DFT(x, n)"},
	{row: "DFT", name: "axis as an attribute", body: "in x F[2,3,4,1]\ny = DFT(x) {axis=2}", opset: 17},
}
