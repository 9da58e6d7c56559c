import * as vscode from "vscode";
import { LanguageClient } from "vscode-languageclient/node";
import { BATCH_EDIT, BatchEdit } from "./messages";

/** Sets the batch size in the open file; all that one drag does is undone by one undo. */
export class BatchSize {
  private running: Promise<void> = Promise.resolve();
  private wanted: number | undefined;
  private dragging = false;

  constructor(private readonly client: () => LanguageClient | undefined) {}

  /** Set it; while a drag goes on, only the latest value matters. */
  set(uri: string, value: number, more: boolean): Promise<void> {
    const first = this.wanted === undefined;
    this.wanted = value;
    if (first || !more) this.running = this.running.then(() => this.apply(uri, more));
    return this.running;
  }

  private async apply(uri: string, more: boolean): Promise<void> {
    const value = this.wanted;
    this.wanted = undefined;
    if (value !== undefined) {
      const edit = await this.client()?.sendRequest<BatchEdit>(BATCH_EDIT, { uri, value });
      if (edit?.problem) void vscode.window.showWarningMessage(`stepscope: ${edit.problem}`);
      if (edit?.uri && edit.range) await this.write(edit);
    }
    this.dragging = more;
  }

  private async write({ uri, range, newText }: BatchEdit): Promise<void> {
    const document = await vscode.workspace.openTextDocument(vscode.Uri.parse(uri!));
    const { start, end } = range!;
    const place = new vscode.Range(start.line, start.character, end.line, end.character);
    if (document.getText(place) === newText) return;
    const editor = await this.editorOf(document);
    const stops = { undoStopBefore: !this.dragging, undoStopAfter: false };
    await editor.edit((change) => change.replace(place, newText ?? ""), stops);
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
