import { expect, test } from "vitest";
import type { Finding, Findings } from "../src/api/types";
import { gainText, markdownOf } from "../src/views/findings";

const FINDING = { gain_ms: 1.63, share: 0.272, share_of: "step" } as Finding;
const found = (step_ms: number, steady_ms: number) => ({ step_ms, steady_ms }) as Findings;

test("a gain is a share of the step", () => {
  expect(gainText(found(6, 6), FINDING)).toBe("1.63\u202fms a step (27%)");
});

test("where delays make steps longer, it says what the gain is a share of", () => {
  expect(gainText(found(45, 5.99), FINDING)).toBe(
    "1.63\u202fms a step, 27% of the 5.99\u202fms without one-off costs and delays",
  );
});

test.each([
  ["job's step", "1.63\u202fms a step (27% of the job's step)"],
  ["run", "1.63\u202fms a step (27% of the run after start-up)"],
  ["whole run", "1.63\u202fms (27% of the whole run)"],
])("what is no share of the step says what it is a share of: %s", (share_of, text) => {
  expect(gainText(found(45, 5.99), { ...FINDING, share_of })).toBe(text);
});

test("findings as Markdown name the gain where there is one", () => {
  const texts = { severity: "warning", what: "Slow.", advice: "Be quick." };
  const findings = [
    { ...FINDING, ...texts },
    { ...FINDING, ...texts, gain_ms: 0 },
  ] as Finding[];
  expect(markdownOf({ ...found(6, 6), findings })).toBe(
    "- **warning**: Slow. Could save 1.63\u202fms a step (27%).\n  Be quick.\n" +
      "- **warning**: Slow.\n  Be quick.\n",
  );
});
