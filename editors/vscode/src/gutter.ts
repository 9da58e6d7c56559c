import * as vscode from "vscode";
import { ExploredLine, Mark, Marks } from "./messages";

const LEVELS = [0, 0.05, 0.15, 0.3]; // least share of the step's time for each width of the mark

/**
 * Marks in the gutter and the ruler, wider the more of the step a line takes; grey where stale.
 * While a module is explored in the panel, marks are on its lines only, and of its time.
 */
export class Gutter implements vscode.Disposable {
  private readonly fresh: vscode.TextEditorDecorationType[];
  private readonly stale: vscode.TextEditorDecorationType;
  private readonly marks = new Map<string, Mark[]>();
  private readonly watch: vscode.Disposable;
  private explored: ExploredLine[] | null = null;

  constructor(media: vscode.Uri) {
    const icon = (name: string) => vscode.Uri.joinPath(media, `${name}.svg`);
    this.fresh = LEVELS.map((least, level) =>
      vscode.window.createTextEditorDecorationType({
        gutterIconPath: icon(`mark-${level}`),
        gutterIconSize: "contain",
        ...(least >= 0.05 && {
          overviewRulerColor: new vscode.ThemeColor("charts.orange"),
          overviewRulerLane: vscode.OverviewRulerLane.Left,
        }),
      }),
    );
    this.stale = vscode.window.createTextEditorDecorationType({
      gutterIconPath: icon("mark-stale"),
      gutterIconSize: "contain",
    });
    this.watch = vscode.window.onDidChangeVisibleTextEditors((editors) =>
      editors.forEach((editor) => this.paint(editor)),
    );
  }

  /** Show what the server found of one file. */
  show({ uri, marks }: Marks): void {
    const key = vscode.Uri.parse(uri).toString();
    this.marks.set(key, marks);
    vscode.window.visibleTextEditors
      .filter((editor) => editor.document.uri.toString() === key)
      .forEach((editor) => this.paint(editor));
  }

  /** Mark only the lines of a module; null for all that were measured. */
  explore(lines: ExploredLine[] | null): void {
    this.explored = lines;
    this.repaint();
  }

  /** Forget all marks: the server that told them is gone. */
  reset(): void {
    this.marks.clear();
    this.repaint();
  }

  dispose(): void {
    [...this.fresh, this.stale, this.watch].forEach((one) => one.dispose());
  }

  private repaint(): void {
    vscode.window.visibleTextEditors.forEach((editor) => this.paint(editor));
  }

  /** The marks to show in a document. */
  private of(document: vscode.TextDocument): Mark[] {
    const marks = this.marks.get(document.uri.toString()) ?? [];
    const here = this.explored?.filter(({ file }) => file === document.uri.fsPath);
    if (!here) return marks;
    const shares = new Map(here.map(({ line, share }) => [line, share]));
    return marks
      .filter(({ measured }) => shares.has(measured))
      .map((mark) => ({ ...mark, share: shares.get(mark.measured)! }));
  }

  private paint(editor: vscode.TextEditor): void {
    const marks = this.of(editor.document);
    const at = (some: Mark[]) => some.map(({ line }) => new vscode.Range(line, 0, line, 0));
    const fresh = marks.filter((mark) => !mark.stale);
    this.fresh.forEach((type, level) =>
      editor.setDecorations(type, at(fresh.filter((mark) => levelOf(mark.share) === level))),
    );
    editor.setDecorations(this.stale, at(marks.filter((mark) => mark.stale)));
  }
}

function levelOf(share: number): number {
  return LEVELS.filter((least) => share >= least).length - 1;
}
