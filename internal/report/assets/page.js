// Draws the charts of the page from the JSON beside it. Text goes into the
// page only as text nodes and canvas text: names in it are not trusted.
(function () {
  "use strict";

  var charts = JSON.parse(document.getElementById("chart-data").textContent);
  var dark = window.matchMedia("(prefers-color-scheme: dark)");

  function css(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  // color resolves "--name" against the theme.
  function color(c) {
    return typeof c === "string" && c.slice(0, 2) === "--" ? css(c) : c;
  }

  var units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

  function bytes(n, digits) {
    var i = 0;
    while (Math.abs(n) >= 1024 && i < units.length - 1) { n /= 1024; i++; }
    return (i === 0 ? String(n) : n.toFixed(digits)) + " " + units[i];
  }

  function seconds(s) {
    if (s === 0) { return "0"; }
    if (Math.abs(s) < 0.9995e-3) { return +(s * 1e6).toPrecision(4) + " µs"; }
    if (Math.abs(s) < 0.9995) { return +(s * 1e3).toPrecision(4) + " ms"; }
    return +s.toPrecision(4) + " s";
  }

  var short = {
    bytes: function (v) { return v === 0 ? "0" : bytes(v, 2).replace(/\.?0+ /, " "); },
    seconds: seconds,
    share: function (v) { return +(v * 100).toFixed(1) + " %"; },
    number: function (v) { return String(+(+v).toPrecision(4)); },
    count: function (v) { return Math.abs(v) < 10000 ? String(v) : +(v / 1000).toPrecision(4) + " k"; }
  };
  var long = {
    bytes: function (v) { return bytes(v, Math.abs(v) >= 1073741824 ? 2 : 1); },
    seconds: seconds,
    share: function (v) { return (v * 100).toFixed(1) + " %"; },
    number: function (v) { return String(+(+v).toPrecision(6)); },
    count: function (v) { return String(v); }
  };

  // binaryAxis puts at most six ticks at a power of two of bytes.
  function binaryAxis(axis, max) {
    var step = Math.pow(2, Math.ceil(Math.log2(Math.max(max, 6) / 6)));
    axis.min = 0;
    axis.interval = step;
    axis.max = Math.ceil(max / step) * step;
  }

  function element(tag, cls, text) {
    var e = document.createElement(tag);
    if (cls) { e.className = cls; }
    if (text !== undefined) { e.textContent = text; }
    return e;
  }

  // shapes are how a legend shows a mark that is no area or line.
  var shapes = { diamond: "polygon(50% 0, 100% 50%, 50% 100%, 0 50%)", triangle: "polygon(50% 8%, 100% 92%, 0 92%)" };

  function swatch(c, symbol) {
    var i = element("i");
    i.style.background = c;
    if (shapes[symbol]) { i.style.borderRadius = 0; i.style.clipPath = shapes[symbol]; }
    return i;
  }

  // row adds "■ name  value" to a tooltip's table.
  function row(table, c, name, value) {
    var tr = element("tr"), left = element("td", "name");
    if (c) { left.appendChild(swatch(c)); }
    left.appendChild(document.createTextNode(name));
    tr.appendChild(left);
    tr.appendChild(element("td", "n", value));
    table.appendChild(tr);
  }

  function tip(title) {
    var box = element("div", "tip");
    box.appendChild(element("b", "", title));
    var table = element("table");
    box.appendChild(table);
    return { box: box, table: table };
  }

  // The tooltips. params is what ECharts says is under the pointer.
  var tips = {
    // live: sums by category at one moment, the node, the largest buffers.
    live: function (chart, params) {
      var line = params.filter(function (p) { return p.seriesName !== "peak"; })[0];
      if (!line) { return ""; }
      var at = line.dataIndex, live = chart.live, point = live.points[at], total = 0;
      var t = tip(long[chart.x](live.x[at]) + " · " + live.names[point[0]]);
      if (live.names[point[1]] !== "–") { t.box.insertBefore(element("div", "soft", "layer " + live.names[point[1]]), t.table); }
      // The lines are sums; the sizes themselves are in the options as given.
      chart.option.series.slice().reverse().forEach(function (s) {
        if (s.name === "peak") { return; }
        var n = s.data[at];
        total += n;
        if (n > 0) { row(t.table, color(s.color), s.name, long.bytes(n)); }
      });
      row(t.table, "", "total", long.bytes(total));
      if (point.length > 2) {
        t.box.appendChild(element("hr"));
        t.box.appendChild(element("div", "soft", "largest live buffers: value ← node of another name that made it, layer"));
        var list = element("table");
        point.slice(2).forEach(function (k) {
          var b = live.buffers[k], by = live.names[b[3]], layer = live.names[b[4]];
          row(list, "", live.names[b[0]] + (b[0] === b[3] ? "" : " ← " + by) + (layer === "–" ? "" : " · " + layer), long.bytes(b[1]));
        });
        t.box.appendChild(list);
      }
      return t.box;
    },
    overlay: function (chart, params) {
      var t = tip(long[chart.x](params[0].axisValue));
      params.forEach(function (p) { row(t.table, p.color, p.seriesName, long.bytes(p.value[1])); });
      return t.box;
    },
    sweep: function (chart, params) {
      var t = tip(chart.xname + " " + params[0].axisValue);
      params.forEach(function (p) { row(t.table, p.color, p.seriesName, long.bytes(p.value[1])); });
      return t.box;
    },
    loss: function (chart, params) {
      var t = tip("step " + params[0].axisValue);
      params.forEach(function (p) { row(t.table, p.color, p.seriesName, long.number(p.value[1])); });
      return t.box;
    },
    // curve: a point of several steps has their mean, smallest and largest.
    curve: function (chart, params) {
      var shown = params.filter(function (p) { return !isRange(chart, p.seriesName); });
      if (shown.length === 0) { return ""; }
      var v = shown[0].value, unit = long[chart.y], t = tip(v.length > 4 ? "steps " + v[4] + " to " + v[5] : "step " + v[0]);
      shown.forEach(function (p) {
        var several = p.value.length > 4;
        row(t.table, p.color, p.seriesName, (several ? "mean " : "") + unit(p.value[1]));
        if (several) { row(t.table, "", "smallest to largest", unit(p.value[2]) + " to " + unit(p.value[3])); }
      });
      return t.box;
    },
    // bar: one row for each series; value axes say the unit.
    bar: function (chart, params) {
      var unit = chart.x === "name" ? chart.y : chart.x, t = tip(params[0].name || params[0].axisValue), total = 0, parts = 0;
      params.forEach(function (p) {
        var v = p.value;
        if (p.seriesName === "figure") { return; }
        if (Array.isArray(v)) {
          if (p.seriesName === "boundary") { row(t.table, p.color, "boundary", ""); return; }
          v = chart.x === "name" ? v[1] : v[0];
          if (p.seriesName === "quartiles") { row(t.table, p.color, "quartile", long[unit](v)); return; }
        } else if (typeof v === "number" && p.seriesName !== "median step") {
          total += v;
          parts++;
        }
        if (v !== null && v !== undefined && v !== 0 && v !== "-") { row(t.table, p.color, p.seriesName, long[unit](v)); }
      });
      if (parts > 1 && chart.id !== "phases") { row(t.table, "", "total", long[unit](total)); }
      return t.box;
    },
    trade: function (chart, p) {
      var t = tip(p.seriesName);
      row(t.table, "", "overhead", long.share(p.value[0]));
      row(t.table, "", "saving", long.share(p.value[1]));
      return t.box;
    },
    pareto: function (chart, p) {
      var t = tip(p.name);
      row(t.table, "", "overhead", long.share(p.value[0]));
      row(t.table, "", "live peak", long.bytes(p.value[1]));
      return t.box;
    }
  };

  // isRange knows the series that draws the band of a curve thinned out, owner the
  // curve that a series belongs to.
  function isRange(chart, s) { return chart.tip === "curve" && / range$/.test(s); }
  function owner(chart, s) { return isRange(chart, s) ? s.slice(0, -6) : s; }

  function each(x, f) { (Array.isArray(x) ? x : [x]).forEach(f); }

  function styleAxis(axis, unit, max, narrow, horizontal) {
    axis.axisLine = { lineStyle: { color: css("--line") }, show: true };
    axis.axisTick = { show: false };
    axis.splitLine = { show: unit !== "name" && !horizontal, lineStyle: { color: css("--grid") } };
    axis.axisLabel = { color: css("--soft"), fontSize: narrow ? 10.5 : 11.5, hideOverlap: true };
    if (unit === "name") {
      axis.axisLabel.width = horizontal ? (narrow ? 62 : 110) : (narrow ? 88 : 150);
      axis.axisLabel.overflow = "break";
      axis.axisLabel.lineHeight = 14;
      if (!horizontal || axis.data.length <= 6) {
        axis.axisLabel.hideOverlap = false;
        axis.axisLabel.interval = 0;
      }
      return;
    }
    axis.axisLabel.formatter = short[unit];
    if (unit === "bytes") { binaryAxis(axis, max); }
    // The end of the step is no round number: its label would touch the last tick's.
    if (axis.max !== undefined && unit !== "bytes") { axis.axisLabel.showMaxLabel = false; }
    if (narrow && horizontal) { axis.splitNumber = 4; }
  }

  // nameAxis writes what a horizontal axis measures under its middle.
  function nameAxis(axis, name, gap) {
    axis.name = name;
    axis.nameLocation = "middle";
    axis.nameGap = gap;
    axis.nameTextStyle = { color: css("--soft"), fontSize: 11.5 };
  }

  // pile adds each category to those below it. ECharts stacks only on category
  // axes; here time is a number. The lowest area is drawn last, on top.
  function pile(series, xs) {
    var below = null;
    series.forEach(function (s, i) {
      if (s.name === "peak") { return; }
      var under = below;
      below = s.data.map(function (n, j) { return under ? n + under[j] : n; });
      s.data = below.map(function (n, j) { return [xs[j], n]; });
      s.z = 20 - i;
    });
  }

  // nameWidth is the room that the longest of the names takes.
  function nameWidth(names, font, most) {
    var pen = document.createElement("canvas").getContext("2d");
    pen.font = font;
    return Math.min(most, Math.ceil(Math.max.apply(null, names.map(function (n) { return pen.measureText(n).width; }))));
  }

  // scatterLabels name the points where a chart has no legend of them.
  function scatterLabels(chart, s, narrow) {
    if (chart.tip === "pareto" && (s.name === "best" || !narrow) || chart.tip === "trade" && !narrow) {
      s.label = {
        show: true, position: "right", color: css(s.name === "dominated" ? "--soft" : "--ink"), fontSize: 11.5, width: narrow ? 110 : 200, overflow: "truncate",
        formatter: function (p) { return chart.tip === "trade" ? p.seriesName : p.name; }
      };
      s.labelLayout = { hideOverlap: true };
    }
  }

  // figureLabels write beside each bar how long it is, as far as all of it is shown.
  function figureLabels(s, shown) {
    s.silent = true;
    s.symbol = "circle";
    s.symbolSize = 1;
    s.itemStyle = { color: "transparent" };
    s.label = {
      show: shown, position: "right", distance: 8, color: css("--ink"), fontSize: 11.5,
      formatter: function (p) { return p.name; }
    };
  }

  // build makes the options for the present theme and width.
  function build(chart, narrow, hidden) {
    var o = JSON.parse(JSON.stringify(chart.option));
    o.series = o.series.filter(function (s) { return !hidden[owner(chart, s.name)]; });
    var point = chart.tip === "trade" || chart.tip === "pareto";
    o.animation = false;
    o.backgroundColor = "transparent";
    o.textStyle = { fontFamily: getComputedStyle(document.body).fontFamily };
    o.legend = { show: false };
    o.grid = { left: 6, right: point ? (narrow ? 60 : 170) : 18, top: 26, bottom: 6, containLabel: true };
    each(o.xAxis, function (a) { styleAxis(a, chart.x, chart.max, narrow, true); });
    each(o.yAxis, function (a) { styleAxis(a, chart.y, chart.max, narrow, false); });
    if (chart.xname) {
      o.grid.bottom = 22;
      each(o.xAxis, function (a) { nameAxis(a, chart.xname, 26); });
      each(o.yAxis, function (a) { a.name = chart.yname; a.nameTextStyle = { color: css("--soft"), fontSize: 11.5, align: "center" }; a.nameGap = 12; });
    }
    // The value axis carries the grid lines.
    if (chart.y === "name") {
      each(o.xAxis, function (a) { a.splitLine.show = true; });
      each(o.yAxis, function (a) {
        var font = a.axisLabel.fontSize + "px " + o.textStyle.fontFamily;
        a.axisLabel.width = nameWidth(a.data, font, a.axisLabel.width) + 4;
        o.grid = { left: a.axisLabel.width + 14, right: chart.tip === "bar" ? 66 : 26, top: 10, bottom: 26, containLabel: false };
      });
    }
    if (chart.tip === "live") { pile(o.series, chart.live.x); }
    o.series.forEach(function (s) {
      s.color = color(s.color);
      s.emphasis = { disabled: true };
      if (Array.isArray(s.data)) {
        s.data.forEach(function (d) { if (d && d.itemStyle) { d.itemStyle.color = color(d.itemStyle.color); } });
      }
      if (s.barMaxWidth) { s.barMaxWidth = +s.barMaxWidth; }
      if (s.name === "figure") { figureLabels(s, !Object.keys(hidden).some(function (k) { return hidden[k]; })); }
      if (s.type === "scatter") { scatterLabels(chart, s, narrow); }
      if (s.markPoint) {
        s.markPoint.silent = true;
        s.markPoint.data.forEach(function (d) {
          d.itemStyle = { color: s.color };
          d.label.color = css("--ink");
          d.label.fontWeight = 600;
          d.label.fontSize = 12;
          d.label.textBorderColor = css("--sheet");
          d.label.textBorderWidth = 3;
          d.label.formatter = function (p) { return p.data.value; };
        });
      }
    });
    o.tooltip = {
      trigger: point ? "item" : "axis", confine: true, backgroundColor: css("--sheet"), borderColor: css("--line"),
      padding: 9, textStyle: { color: css("--ink") }, extraCssText: "max-width: 350px; box-shadow: 0 4px 18px rgba(0,0,0,.18);",
      axisPointer: { type: chart.tip === "bar" ? "shadow" : "line", snap: true, lineStyle: { color: css("--soft") } },
      formatter: function (p) { return tips[chart.tip](chart, p); }
    };
    return o;
  }

  // legend makes the buttons above a chart; a button hides its series.
  function legend(chart, hidden, redraw) {
    var box = document.getElementById("legend-" + chart.id), seen = Object.create(null);
    chart.option.series.forEach(function (s) {
      if (!s.name || isRange(chart, s.name) || s.name === "peak" || s.name === "quartiles" || s.name === "median step" || s.name === "figure" || seen[s.name]) { return; }
      seen[s.name] = true;
      var b = element("button");
      b.type = "button";
      b.setAttribute("aria-pressed", "true");
      b.appendChild(swatch("var(" + s.color + ")", s.symbol));
      b.appendChild(document.createTextNode(s.name));
      b.addEventListener("click", function () {
        var on = b.getAttribute("aria-pressed") !== "true";
        b.setAttribute("aria-pressed", String(on));
        hidden[s.name] = !on;
        redraw();
      });
      box.appendChild(b);
    });
  }

  function draw(chart) {
    var box = document.getElementById("chart-" + chart.id);
    var view = window.echarts.init(box, null, { renderer: "canvas" });
    var narrow = box.clientWidth < 460, hidden = Object.create(null);
    function redraw() { view.setOption(build(chart, narrow, hidden), true); }
    view.on("finished", function () { box.setAttribute("data-drawn", "true"); });
    legend(chart, hidden, redraw);
    redraw();
    dark.addEventListener("change", redraw);
    new ResizeObserver(function () {
      view.resize();
      var now = box.clientWidth < 460;
      if (now !== narrow) {
        narrow = now;
        redraw();
      }
    }).observe(box);
  }

  charts.forEach(draw);
})();
