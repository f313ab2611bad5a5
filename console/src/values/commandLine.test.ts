import { expect, test } from "vitest";
import { curlCommand, shellCommand } from "./commandLine";

test.each([
  [["tenuto", "pause", "1a1f"], "tenuto pause 1a1f"],
  [["tenuto", "approve", "1a", "notify#3"], "tenuto approve 1a notify#3"],
  [["echo", "it's $HOME"], `echo 'it'\\''s $HOME'`],
  [["echo", "", "#c"], "echo '' '#c'"],
])("%j", (words, command) => expect(shellCommand(words)).toBe(command));

test("curl names the credential and does not contain it", () => {
  expect(curlCommand("POST", "/v1/executions/1a:pause", '{"reason":"it\'s late"}')).toBe(
    [
      'curl -X POST "$TENUTO_SERVER"/v1/executions/1a:pause',
      '-H "Authorization: Bearer $TENUTO_API_KEY"',
      '-H "Content-Type: application/json"',
      `-d '{"reason":"it'\\''s late"}'`,
    ].join(" \\\n  "),
  );
});
