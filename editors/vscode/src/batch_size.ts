import * as vscode from "vscode";
import { LanguageClient } from "vscode-languageclient/node";
import { BATCH_EDIT, BatchEdit } from "./messages";

const MOST_TRIES = 3;

/** Sets the batch size in the open file; all that one drag does is undone by one undo. */
export class BatchSize {
  private running: Promise<void> = Promise.resolve();
  private wanted: number | undefined;
  private edited = false; // the drag that goes on has changed the text already

  constructor(private readonly client: () => LanguageClient | undefined) {}

  /** Set it; while a drag goes on, only the latest value matters. */
  set(uri: string, value: number, more: boolean): Promise<void> {
    const first = this.wanted === undefined;
    this.wanted = value;
    if (first || !more) {
      const before = this.running.catch(() => undefined); // was said; the next one is another try
      this.running = before.then(() => this.apply(uri, more));
    }
    return this.running;
  }

  private async apply(uri: string, more: boolean): Promise<void> {
    const value = this.wanted;
    this.wanted = undefined;
    try {
      if (value !== undefined) await this.write(uri, value);
    } finally {
      this.edited &&= more;
    }
  }

  /** Ask where the number is and replace it; again, if the text changed in between. */
  private async write(uri: string, value: number): Promise<void> {
    for (let tries = 0; tries < MOST_TRIES; tries++) {
      const edit = await this.client()?.sendRequest<BatchEdit>(BATCH_EDIT, { uri, value });
      if (edit?.open && tries === 0) {
        await vscode.workspace.openTextDocument(vscode.Uri.parse(edit.open)); // the server hears of it
        continue;
      }
      if (edit?.problem) void vscode.window.showWarningMessage(`stepscope: ${edit.problem}`);
      if (!edit?.uri || !edit.range || (await this.replace(edit))) return;
    }
  }

  /** Replace the number in the version of the document that was asked about, or nothing. */
  private async replace(edit: BatchEdit): Promise<boolean> {
    const { uri, range, newText } = edit;
    const document = await vscode.workspace.openTextDocument(vscode.Uri.parse(uri!));
    const editor = await this.editorOf(document);
    const { start, end } = range!;
    const place = new vscode.Range(start.line, start.character, end.line, end.character);
    if (document.version !== edit.version || document.getText(place) !== edit.expected) {
      return false;
    }
    if (edit.expected === newText) return true;
    const stops = { undoStopBefore: !this.edited, undoStopAfter: false };
    const done = await editor.edit((change) => change.replace(place, newText ?? ""), stops);
    this.edited ||= done;
    return done;
  }

  private async editorOf(document: vscode.TextDocument): Promise<vscode.TextEditor> {
    const visible = vscode.window.visibleTextEditors.find((one) => one.document === document);
    return (
      visible ??
      vscode.window.showTextDocument(document, {
        viewColumn: vscode.ViewColumn.One,
        preserveFocus: true,
      })
    );
  }
}
