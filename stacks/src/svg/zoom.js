(function () {
  var frames = [].slice.call(document.querySelectorAll("#frames g")).map(function (g) {
    var r = g.querySelector("rect");
    return { g: g, r: r, t: g.querySelector("text"), d: +g.getAttribute("data-d"), s: g.getAttribute("data-s"), k: g.getAttribute("data-k"),
      w: g.querySelector("title").textContent, x: +r.getAttribute("x"), n: +r.getAttribute("width") };
  });
  var info = document.getElementById("info"), reset = document.getElementById("reset");
  var left = 10, full = 1580;
  function fit(f, n) {
    var room = Math.floor((n - 6) / 7.25);
    if (f.w.length <= room) return f.w;
    if (f.s.length + f.k.length <= room) return f.s + f.k;
    var k = f.k.length <= room / 2 ? f.k : "";
    var left = room - k.length - 2;
    return left < 1 ? "" : f.s.slice(0, left) + ".." + k;
  }
  function zoom(to) {
    var scale = full / to.n;
    frames.forEach(function (f) {
      var inside = f.x >= to.x - 0.05 && f.x + f.n <= to.x + to.n + 0.05 && f.d >= to.d;
      var below = f.d < to.d && f.x <= to.x + 0.05 && f.x + f.n >= to.x + to.n - 0.05;
      f.g.setAttribute("class", inside ? "" : below ? "below" : "hide");
      if (!inside && !below) return;
      var x = below ? left : left + (f.x - to.x) * scale, n = below ? full : f.n * scale;
      f.r.setAttribute("x", x.toFixed(1));
      f.r.setAttribute("width", n.toFixed(1));
      f.t.setAttribute("x", (x + 3).toFixed(1));
      f.t.textContent = fit(f, n);
    });
    reset.setAttribute("class", to === frames[0] ? "hide" : "");
  }
  frames.forEach(function (f) {
    f.g.addEventListener("click", function () { zoom(f); });
    f.g.addEventListener("mouseover", function () { info.textContent = f.w; });
    f.g.addEventListener("mouseout", function () { info.textContent = " "; });
  });
  reset.addEventListener("click", function () { zoom(frames[0]); });
  window.addEventListener("keydown", function (e) { if (e.key === "Escape") zoom(frames[0]); });
})();
