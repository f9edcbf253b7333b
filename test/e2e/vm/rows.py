# rows.py FILE: a verify as a section of the evidence: what passed, by place, and what did not.
import collections, json, os, sys

titles = {"verify.json": "fy verify", "verify-2.json": "fy verify, with the other boot script on the other band", "verify-off.json": "fy verify, without the firewall"}
r = json.load(open(sys.argv[1]))
places = collections.defaultdict(lambda: collections.defaultdict(list))
for row in r["rows"]:
    place = next((p for p in ("host-net", "sub-uid", "keep-id") if row["id"].startswith(p)), row["id"].split("-")[0])
    result = row["result"] if row["seen_by"] == "host" else row["result"] + ", by the guest's word"
    places[place][result].append(row["id"][len(place) + 1:])
print("\n## %s: %s\n" % (titles[os.path.basename(sys.argv[1])], r["verdict"]) + "```")
for place, results in places.items():
    for result, rows in sorted(results.items()):
        print("%s, %s: %s" % (place, result, ", ".join(rows)))
print("```")
