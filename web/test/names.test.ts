import { expect, test } from "vitest";
import { fittingName, withoutNamespace } from "../src/base/names";
import { savedName } from "../src/base/save";

test.each([
  ["aten::conv2d", "conv2d"],
  ["at::native::(anonymous namespace)::sum", "sum"],
  ["c10d::ops::allreduce_", "allreduce_"],
  ["void cudnn::dgrad_engine<float>", "dgrad_engine<float>"],
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

test.each([
  ["trace forward.json", "trace_forward.json"],
  ["前向传播 Ünïcode.csv", "前向传播_Ünïcode.csv"],
  ["a/b\\c:d", "a_b_c_d"],
])("a file for %s", (name, file) => {
  expect(savedName(name)).toBe(file);
});

test("a start that is wider than the mean letter is cut further", () => {
  const wide = (text: string): number =>
    [...text].reduce((sum, letter) => sum + (letter === "W" ? 20 : 5), 0);
  expect(fittingName("WWWWWWiiiiii", 75, wide)).toBe("WWW…"); // 65 px; one more is 85
});
