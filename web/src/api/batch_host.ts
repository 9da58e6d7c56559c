import { readElement } from "./element";
import type { BatchAnswer, BatchProfile, DevicesAnswer, DevicesReply } from "./batch_types";
import { editorAround, openLine } from "./editor";

/** Which devices to predict, and how many of them train together. */
export interface DevicesWanted {
  on: string;
  ranks: number;
  bandwidth: number;
}

/** A line, and how much of a module's time it takes, 0 to 1. */
export interface LineShare {
  file: string;
  line: number; // as measured, from 1
  share: number;
}

/** Where the page about batch sizes lives: beside a file in an editor, or in a file of its own. */
export interface BatchHost {
  /** Whether a choice changes the source. */
  readonly edits: boolean;
  /** Whether other devices can be predicted, or were. */
  readonly knowsDevices: boolean;
  ask(): Promise<BatchAnswer>;
  /** Predict other devices; a file has the prediction that it was written with. */
  devices(wanted: DevicesWanted): Promise<DevicesReply>;
  /** Set the batch size in the source, and wait until it is; `more` while a drag goes on. */
  choose(batch: number, more: boolean): Promise<void>;
  /** Open a line. */
  reveal(file: string, line: number): void;
  /** Mark a line as long as the pointer is over what it costs; null for none. */
  highlight(file: string | null, line: number): void;
  /** Mark only these lines in the gutter, those of the module that is explored; null for all. */
  explore(lines: LineShare[] | null): void;
  /** Called when there is something new to ask for. */
  onChanged(act: () => void): void;
  /** Called with the line that the cursor of the editor is on. */
  onLine(act: (file: string, line: number) => void): void;
}

type FromEditor =
  | { kind: "changed" }
  | { kind: "line"; file: string; line: number }
  | { kind: "answer"; id: number; answer?: unknown; error?: string };

/** In an editor's webview: everything goes through messages. */
export class EditorHost implements BatchHost {
  readonly edits = true;
  readonly knowsDevices = true;
  private readonly editor = editorAround()!;
  private readonly waiting = new Map<number, (message: FromEditor & { kind: "answer" }) => void>();
  private changed: () => void = () => undefined;
  private line: (file: string, line: number) => void = () => undefined;
  private asked = 0;

  constructor() {
    addEventListener("message", ({ data }: MessageEvent<FromEditor>) => this.receive(data));
  }

  ask(): Promise<BatchAnswer> {
    return this.request({ kind: "request", request: "batch" }) as Promise<BatchAnswer>;
  }

  devices(wanted: DevicesWanted): Promise<DevicesReply> {
    return this.request({ kind: "devices", ...wanted }) as Promise<DevicesReply>;
  }

  choose(value: number, more: boolean): Promise<void> {
    return this.request({ kind: "batch", value, more }) as Promise<void>;
  }

  reveal(file: string, line: number): void {
    openLine(file, line);
  }

  highlight(file: string | null, line: number): void {
    this.editor.postMessage({ kind: "highlight", file, line });
  }

  explore(lines: LineShare[] | null): void {
    this.editor.postMessage({ kind: "explore", lines });
  }

  onChanged(act: () => void): void {
    this.changed = act;
  }

  onLine(act: (file: string, line: number) => void): void {
    this.line = act;
  }

  private request(message: object): Promise<unknown> {
    const id = ++this.asked;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, ({ answer, error }) =>
        error === undefined ? resolve(answer) : reject(new Error(error)),
      );
      this.editor.postMessage({ ...message, id });
    });
  }

  private receive(message: FromEditor): void {
    if (message.kind === "changed") this.changed();
    else if (message.kind === "line") this.line(message.file, message.line);
    else if (message.kind === "answer") {
      this.waiting.get(message.id)?.(message);
      this.waiting.delete(message.id);
    }
  }
}

/** `stepscope batch --html`: the answer lies in the page, and there is no source to change. */
export class FileHost implements BatchHost {
  readonly edits = false;
  readonly knowsDevices: boolean;

  private chosen: number;

  constructor(
    private readonly profile: BatchProfile,
    private readonly predicted: DevicesAnswer | null = null,
  ) {
    this.chosen = profile.batch;
    this.knowsDevices = predicted !== null;
  }

  devices(): Promise<DevicesReply> {
    return Promise.resolve({ devices: this.predicted, problem: null });
  }

  ask(): Promise<BatchAnswer> {
    return Promise.resolve({ batch: this.profile, problem: null, written: this.chosen });
  }

  choose(batch: number): Promise<void> {
    this.chosen = batch;
    return Promise.resolve();
  }

  reveal(): void {}
  highlight(): void {}
  explore(): void {}
  onChanged(): void {}
  onLine(): void {}
}

/** The host that the page lives in. */
export function connectBatch(page: Document): BatchHost {
  const profile = readElement<BatchProfile>(page, "stepscope-batch");
  if (!profile) return new EditorHost();
  return new FileHost(profile, readElement<DevicesAnswer>(page, "stepscope-devices"));
}
