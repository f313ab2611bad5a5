/** A word of a shell command, quoted where the shell would read it otherwise. */
export function shellWord(word: string): string {
  return /^[\w./:=@,#-]+$/.test(word) && !word.startsWith("#") ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

export function shellCommand(words: readonly string[]): string {
  return words.map(shellWord).join(" ");
}

/** The request as a curl command. The credential and the address come from the reader's environment. */
export function curlCommand(method: string, path: string, body: string | undefined): string {
  const lines = [`curl -X ${method} "$TENUTO_SERVER"${shellWord(path)}`, `-H "Authorization: Bearer $TENUTO_API_KEY"`];
  if (body !== undefined) lines.push(`-H "Content-Type: application/json"`, `-d ${shellWord(body)}`);
  return lines.join(" \\\n  ");
}
