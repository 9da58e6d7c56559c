// What the language server says and is asked beyond the protocol's own messages (docs/guide/editor.md).

export interface Mark {
  line: number; // from 0
  measured: number; // the line as it was measured, from 1
  share: number; // of the step's time, 0 to 1
  stale: boolean;
}

export interface Marks {
  uri: string;
  marks: Mark[];
}

/** A line of the module that is explored in the panel. */
export interface ExploredLine {
  file: string;
  line: number; // as measured, from 1
  share: number; // of the module's time, 0 to 1
}

export interface State {
  uri: string;
  state: "measuring" | "measured" | "failed" | "cancelled";
  message: string;
}

export interface Position {
  line: number;
  character: number;
}

/** The edit that sets the batch size, or why there is none. */
export interface BatchEdit {
  uri?: string;
  version?: number; // of the document that the range refers to
  range?: { start: Position; end: Position };
  expected?: string; // the text in that range
  newText?: string;
  problem?: string;
  open?: string; // the document to open before asking again
}

export const MARKS = "stepscope/marks";
export const STATE = "stepscope/state";
export const MEASURE = "stepscope/measure";
export const CANCEL = "stepscope/cancel";
export const ANSWER = "stepscope/answer";
export const DEVICES = "stepscope/devices";
export const BATCH_EDIT = "stepscope/batchEdit";
export const REMEMBER = "stepscope/remember";

/** A setting of this workspace that the user chose in a message. */
export interface Remember {
  setting: string;
  value: string;
}
