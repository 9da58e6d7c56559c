import { expect, it } from "vitest";
import { matching } from "../src/model/commands";

const COMMANDS = [
  { kind: "kernel", name: "volta_sgemm_128x64" },
  { kind: "pane", name: "Kernels" },
  { kind: "action", name: "Longest kernel" },
  { kind: "module", name: "layer4.1.conv1" },
];

const names = (typed: string): string[] => matching(COMMANDS, typed).map((one) => one.name);

it("lists all that has every word, in its kind or its name", () => {
  expect(names("")).toHaveLength(4);
  expect(names("conv 4.1")).toEqual(["layer4.1.conv1"]);
  expect(names("nothing")).toEqual([]);
});

it("has what begins with the text first", () => {
  expect(names("kernel")[0]).toBe("Kernels");
});
