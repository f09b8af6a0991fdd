// Package report shows what was measured, predicted and planned: documents in
// JSON, tables in text, one page in HTML, pictures in PNG.
//
//	Run, Plan, Compare   the documents; WriteJSON writes what programs read
//	Timeline             allocations over one step; Peak, Phases, Points
//	Table, Facts         aligned text; the page shows the same cells
//	Page                 one self-contained HTML page of a comparison
//	TimelinePNG, ...     pictures for papers
//
// The package holds plain data and knows neither ONNX nor a runtime. Names in
// it (nodes, values, layers, files) come from files and are hostile: clean
// makes them printable, html/template and encoding/json escape them.
package report
