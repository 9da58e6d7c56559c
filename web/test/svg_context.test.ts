import { describe, expect, it } from "vitest";
import { SvgContext } from "../src/render/svg_context";

const fresh = (): SvgContext => new SvgContext(null, { next: 0 });

describe("what is drawn on a canvas, as SVG", () => {
  it("has rectangles with their color and opacity, and none without a size", () => {
    const context = fresh();
    context.fillStyle = "#abc";
    context.globalAlpha = 0.3;
    context.fillRect(1.234, 2, 3, 4);
    context.fillRect(1, 2, 0, 4);
    expect(context.svg).toBe(
      '<rect x="1.23" y="2" width="3" height="4" fill="#abc" opacity="0.3"/>',
    );
  });

  it("has text that is text, whatever is in it", () => {
    const context = fresh();
    context.font = "10px x";
    context.textBaseline = "middle";
    context.fillText("<b>&\u0007", 1, 2);
    expect(context.svg).toBe(
      '<text x="1" y="5.5" font-size="10" fill="#000">&lt;b&gt;&amp; </text>',
    );
  });

  it("cuts at a path until the state before is restored", () => {
    const context = fresh();
    context.save();
    context.beginPath();
    context.rect(0, 0, 5, 5);
    context.clip();
    context.fillStyle = "red";
    context.fillRect(0, 0, 9, 9);
    context.restore();
    context.fillRect(1, 1, 1, 1);
    expect(context.svg).toMatch(
      /^<clipPath id="clip0">.*<g clip-path="url\(#clip0\)"><rect.*red.*<\/g>/,
    );
    expect(context.svg.endsWith('fill="#000"/>')).toBe(true);
  });

  it("rounds the corners of a rectangle by no more than it has", () => {
    const context = fresh();
    context.beginPath();
    context.roundRect(0, 0, 4, 2, 9);
    context.stroke();
    expect(context.svg).toContain("M1 0h2a1 1 0 0 1 1 1v0a1 1 0 0 1 -1 1h-2a1 1 0 0 1 -1 -1v-0");
  });
});
