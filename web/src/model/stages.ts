/** Stages in the order of the server's numbers (`STAGES` of `stepscope.trace.schema`). */
export const STAGES = [
  "data_loading",
  "transfer",
  "forward",
  "loss",
  "zero_grad",
  "backward",
  "optimizer",
  "prefill",
  "decode",
  "prefill_decode",
  "other",
] as const;

/** Whether only inference servers and generating loops have this stage. */
export function ofInference(stage: string): boolean {
  return stage.startsWith("prefill") || stage === "decode";
}
