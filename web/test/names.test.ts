import { expect, test } from "vitest";
import { fittingName, withoutNamespace } from "../src/base/names";

test.each([
  ["aten::conv2d", "conv2d"],
  ["at::native::(anonymous namespace)::sum", "sum"],
  ["c10d::ops::allreduce_", "allreduce_"],
  ["encoder.layer.3", "encoder.layer.3"],
  ["::", "::"],
])("%s without its namespace", (name, expected) => {
  expect(withoutNamespace(name)).toBe(expected);
});

const perLetter = (text: string): number => 10 * text.length;

test.each([
  [120, "aten::conv2d"],
  [119, "conv2d"],
  [60, "conv2d"],
  [59, "conv…"],
  [40, "con…"],
  [39, ""],
])("in %i px of ten a letter", (width, expected) => {
  expect(fittingName("aten::conv2d", width, perLetter)).toBe(expected);
});
