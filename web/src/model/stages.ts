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
  "evaluation",
  "checkpointing",
  "other",
] as const;

const INFERENCE = ["prefill", "decode", "prefill_decode"];

/** The stages that one trace may show: those of training, and those of inference. */
export const TOGETHER: string[][] = [
  STAGES.filter((stage) => !INFERENCE.includes(stage)),
  [...INFERENCE, "transfer", "forward", "other"],
];

/** Whether few traces have this stage, so that a legend needs it only for those. */
export function isRare(stage: string): boolean {
  return [...INFERENCE, "evaluation", "checkpointing"].includes(stage);
}
