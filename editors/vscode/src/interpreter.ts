import * as vscode from "vscode";

interface PythonApi {
  environments: {
    getActiveEnvironmentPath(resource?: vscode.Uri): { path: string };
    resolveEnvironment(environment: {
      path: string;
    }): Promise<{ executable: { uri?: vscode.Uri } } | undefined>;
  };
}

/** The Python that runs the server: the setting's, else the Python extension's, else `python3`. */
export async function interpreter(): Promise<string> {
  const chosen = vscode.workspace.getConfiguration("stepscope").get<string>("interpreter", "");
  return chosen || (await ofPythonExtension().catch(() => undefined)) || "python3";
}

async function ofPythonExtension(): Promise<string | undefined> {
  const extension = vscode.extensions.getExtension<PythonApi>("ms-python.python");
  if (!extension) return undefined;
  const api = await extension.activate();
  const active = api?.environments?.getActiveEnvironmentPath(
    vscode.workspace.workspaceFolders?.[0]?.uri,
  );
  const environment = active && (await api.environments.resolveEnvironment(active));
  return environment?.executable.uri?.fsPath;
}
