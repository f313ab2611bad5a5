import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";

type Rgb = [number, number, number];

const TOKENS = readFileSync(new URL("./tokens.css", import.meta.url), "utf8");
const STATUSES = ["running", "succeeded", "failed", "person", "timer", "compensation", "inactive"];
const SURFACES = ["canvas", "surface"];

function colour(name: string, theme: number): Rgb {
  const pair = new RegExp(`--${name}: light-dark\\((#\\w{6}), (#\\w{6})\\)`).exec(TOKENS);
  const hex = pair?.[theme + 1];
  if (!hex) throw new Error(`There is no colour --${name}.`);
  return [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16)) as Rgb;
}

/** A colour with another one over it, as `color-mix(in srgb, over share, under)` does. */
function mixed(under: Rgb, over: Rgb, share: number): Rgb {
  return under.map((part, index) => part * (1 - share) + (over[index] ?? 0) * share) as Rgb;
}

function luminance(rgb: Rgb): number {
  const [red, green, blue] = rgb.map((part) => {
    const value = part / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  }) as Rgb;
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function contrast(one: Rgb, other: Rgb): number {
  const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a) as [number, number];
  return (light + 0.05) / (dark + 0.05);
}

test("the contrast of black and white is 21", () => {
  expect(contrast([0, 0, 0], [255, 255, 255])).toBeCloseTo(21);
  expect(contrast([119, 119, 119], [255, 255, 255])).toBeCloseTo(4.48, 2);
});

describe.each([
  ["light", 0],
  ["dark", 1],
])("the %s theme", (_name, theme) => {
  const of = (name: string) => colour(name, theme);

  test.each(["text", "secondary", "accent", ...STATUSES])(
    "%s is readable on every surface and on its own tint",
    (name) => {
      for (const surface of SURFACES) {
        expect(contrast(of(name), of(surface))).toBeGreaterThanOrEqual(4.5);
        expect(contrast(of(name), mixed(of(surface), of(name), 0.12))).toBeGreaterThanOrEqual(4.5);
      }
    },
  );

  test.each(["text", "secondary", "accent", ...STATUSES])("%s is readable in a row under the pointer", (name) => {
    expect(contrast(of(name), of("hover"))).toBeGreaterThanOrEqual(4.5);
  });

  test.each(["text", "secondary"])("%s is readable on the tint of every status and of the selection", (name) => {
    for (const tint of [...STATUSES, "accent"]) {
      expect(contrast(of(name), mixed(of("surface"), of(tint), 0.12))).toBeGreaterThanOrEqual(4.5);
    }
  });

  test.each(["accent", "accent-hover"])("the label of a primary button is readable on %s", (name) => {
    expect(contrast(of("on-accent"), of(name))).toBeGreaterThanOrEqual(4.5);
  });

  test.each(["control-border", "accent", ...STATUSES])("%s marks a control or an icon on every surface", (name) => {
    for (const surface of SURFACES) expect(contrast(of(name), of(surface))).toBeGreaterThanOrEqual(3);
  });
});
